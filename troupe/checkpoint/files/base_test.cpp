#include "troupe/checkpoint/files/base.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "troupe/checkpoint/files/reader.h"
#include "troupe/checkpoint/files/shard_writer.h"
#include "troupe/core/check.h"
#include "troupe/core/file/publish.h"
#include "troupe/testing/temporary_folder.h"

namespace troupe {
namespace {

namespace stdfs = std::filesystem;
using testing::TemporaryFolder;
using Numbers = std::map<std::string, std::vector<float>>;

const Faults kNoFaults;

// Writes RUN/step-000001.
std::string write_step(const std::string& run, const std::string& id, const Numbers& tensors,
                       const std::optional<BaseCheckpoint>& base = {}) {
  const std::string folder = run + "/step-000001";
  stdfs::create_directories(folder);
  std::vector<ShardPiece> pieces;
  for (const auto& [name, x] : tensors) {
    pieces.push_back({{name, Element::kF32, Box::whole({static_cast<int64_t>(x.size())})},
                      std::as_bytes(std::span(x))});
  }
  Fs fs;
  Manifest manifest;
  manifest.run = id, manifest.step = 1, manifest.base = base;
  const ShardTask task{.folder = folder, .run = id, .step = 1};
  manifest.shards = write_shards(fs, kNoFaults, task, pieces);
  NewFile file(fs, folder + '/' + kManifestName);
  file.write(to_json(manifest));
  file.finish();
  return folder;
}

Numbers all_of(const CheckpointReader& reader) {
  Numbers out;
  for (const auto& [name, tensor] : reader.tensors()) {
    std::vector<float>& x = out[name];
    x.resize(static_cast<size_t>(tensor.global[0]));
    reader.read(tensor, name, Box::whole(tensor.global), std::as_writable_bytes(std::span(x)),
                kNoFaults);
  }
  return out;
}

std::string refusal(const std::string& folder, const std::string& moved_to = "") {
  try {
    with_base(read_manifest(folder), folder, moved_to);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Code::kOtherBase);
    return e.what();
  }
  return "nothing was refused";
}

class Base : public ::testing::Test {
 protected:
  Base() {
    base_ = write_step(folder_ / "base", "one", weights_);
    tuned_ = write_tuned();
  }
  std::string write_tuned() const {
    const std::string run = folder_ / "tuned";
    return write_step(run, "two", {{"model.lora_a", {3}}, {"model.bias", {4}}},
                      base_of(base_, read_manifest(base_), run));
  }

  const Numbers weights_ = {
      {"model.w", {1, 2}}, {"model.bias", {7}}, {"optimizer.moment.w", {5, 5}}};
  const Numbers whole_ = {{"model.w", {1, 2}}, {"model.bias", {4}}, {"model.lora_a", {3}}};
  TemporaryFolder folder_;
  std::string base_, tuned_;
};

TEST_F(Base, WeightsThatACheckpointLacksAreItsBases) {
  const CheckpointReader reader(tuned_);
  EXPECT_EQ(all_of(reader), whole_);
  EXPECT_EQ(read_manifest(tuned_).format, 2);
  EXPECT_EQ(read_manifest(base_).format, 1);
  EXPECT_TRUE(reader.extra_files().empty());
}

TEST_F(Base, ABaseMayHaveABase) {
  const std::string run = folder_ / "third";
  const std::string third = write_step(run, "three", {{"model.lora_b", {9}}},
                                       base_of(tuned_, read_manifest(tuned_), run));
  Numbers want = whole_;
  want["model.lora_b"] = {9};
  EXPECT_EQ(all_of(CheckpointReader(third)), want);
}

TEST_F(Base, BothRunsMayBeMovedTogether) {
  const std::string other = folder_ / "other";
  stdfs::create_directories(other);
  stdfs::rename(folder_ / "base", other + "/base");
  stdfs::rename(folder_ / "tuned", other + "/tuned");
  EXPECT_EQ(all_of(CheckpointReader(other + "/tuned/step-000001")), whole_);
}

TEST_F(Base, ABaseThatWasMovedAloneIsFoundWhereItIsSaidToBe) {
  const std::string moved = folder_ / "moved";
  stdfs::rename(base_, moved);
  const std::string said = refusal(tuned_);
  EXPECT_NE(said.find(base_ + ": there is no checkpoint"), std::string::npos) << said;
  EXPECT_NE(said.find("checkpoint.init_from"), std::string::npos) << said;
  const Manifest found = with_base(read_manifest(tuned_), tuned_, moved);
  EXPECT_EQ(found.base->folder, moved);
  EXPECT_EQ(all_of(CheckpointReader(tuned_, found)), whole_);
}

TEST_F(Base, OtherWeightsAreNotTakenForTheBase) {
  const std::string hash = base_hash(read_manifest(base_));
  stdfs::remove_all(base_);
  write_step(folder_ / "base", "one", {{"model.w", {1, 3}}, {"model.bias", {7}}});
  const std::string said = refusal(tuned_);
  EXPECT_NE(said.find("a base whose hash is " + hash), std::string::npos) << said;
  EXPECT_NE(said.find("holds other weights, whose hash is " + base_hash(read_manifest(base_))),
            std::string::npos)
      << said;
  EXPECT_THROW(CheckpointReader{tuned_}, Error);
  // The same ones that were made again, by another run.
  stdfs::remove_all(base_);
  write_step(folder_ / "base", "another", weights_);
  EXPECT_EQ(all_of(CheckpointReader(tuned_)), whole_);
}

}  // namespace
}  // namespace troupe
