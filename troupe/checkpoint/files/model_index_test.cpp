#include "troupe/checkpoint/files/model_index.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "troupe/checkpoint/files/publish_safetensors_test.h"
#include "troupe/core/check.h"
#include "troupe/testing/temporary_folder.h"

namespace troupe {
namespace {

namespace stdfs = std::filesystem;

class ModelIndex : public ::testing::Test {
 protected:
  ModelIndex() {
    write_file("one.safetensors", {"a", "b"});
    write_file("two.safetensors", {"c"});
  }

  void write_file(const std::string& name, const std::vector<std::string>& tensors) {
    std::vector<SafetensorsEntry> entries;
    for (const auto& t : tensors) entries.push_back({t, Element::kI8, {4}});
    publish_safetensors(fs_, folder_ / name, layout_safetensors(entries),
                        [](const SafetensorsEntry&, const WriteBytes& write) {
                          write(std::as_bytes(std::span("1234", 4)));
                        });
  }
  void write_index(const std::string& map, int total = 12) {
    publish_file(fs_, folder_ / "model.safetensors.index.json",
                 R"({"metadata":{"total_size":)" + std::to_string(total) + R"(},"weight_map":{)" +
                     map + "}}");
  }
  void refuses(const std::vector<std::string>& with) {
    try {
      const ModelFiles files(folder_.path());
      ADD_FAILURE() << "accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Code::kBadModelFile);
      for (const std::string& part : with) {
        EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
      }
    }
  }

  testing::TemporaryFolder folder_;
  Fs fs_;
  const std::string map_ = R"("a":"one.safetensors","b":"one.safetensors","c":"two.safetensors")";
};

TEST_F(ModelIndex, FollowsTheMapWhateverTheFilesAreCalled) {
  write_index(map_);
  const ModelFiles files(folder_.path());
  EXPECT_EQ(files.tensors().size(), 3u);
  EXPECT_TRUE(files.warnings().empty());
  std::string got(3, ' ');
  files.find("c")->read(1, std::as_writable_bytes(std::span(got)));
  EXPECT_EQ(got, "234");
  EXPECT_EQ(files.find("d"), nullptr);
}

TEST_F(ModelIndex, AWrongTotalIsAWarning) {
  write_index(map_, 11);
  const ModelFiles files(folder_.path());
  ASSERT_EQ(files.warnings().size(), 1u);
  EXPECT_NE(files.warnings()[0].find("total_size is 11, the files hold 12"), std::string::npos);
}

TEST_F(ModelIndex, F45_AllFaultsAreToldAtOnce) {
  write_index(R"("a":"one.safetensors","d":"two.safetensors","e":"three.safetensors")");
  refuses({"tensor b of one.safetensors is not in the index",
           "tensor c of two.safetensors is not in the index", "tensor d is not in two.safetensors",
           "the file three.safetensors is missing"});
}

TEST_F(ModelIndex, F45_ATensorInTwoFilesIsRefused) {
  write_file("two.safetensors", {"c", "a"});
  write_index(map_);
  refuses({"tensor a is in ", "one.safetensors and in ", "two.safetensors"});
}

TEST_F(ModelIndex, F45_F137_NamesThatLeaveTheFolderAreRefused) {
  for (const char* name : {"../x", "/etc/passwd", "a/b", "..", "", "a\\\\b", "x\\u0000"}) {
    write_index(map_ + R"(,"z":")" + std::string(name) + '"');
    refuses({"tensor z is said to be in"});
  }
  const testing::TemporaryFolder outside;
  stdfs::rename(folder_ / "two.safetensors", outside / "two.safetensors");
  stdfs::create_symlink(outside / "two.safetensors", folder_ / "two.safetensors");
  write_index(map_);
  refuses({"the file two.safetensors is a link that leaves the folder"});
}

TEST_F(ModelIndex, AHubsCacheIsReadThroughItsLinks) {
  const testing::TemporaryFolder hub;
  const std::string snapshot = hub / "snapshots/abc";
  stdfs::create_directories(snapshot);
  stdfs::create_directories(hub / "blobs");
  stdfs::copy(folder_ / "two.safetensors", hub / "blobs/77");
  stdfs::create_symlink("../../blobs/77", snapshot + "/model.safetensors");
  EXPECT_EQ(ModelFiles(snapshot).tensors().size(), 1u);
}

TEST_F(ModelIndex, F138_APipeInPlaceOfAFileIsRefusedAndDoesNotBlock) {
  stdfs::remove(folder_ / "two.safetensors");
  ASSERT_EQ(mkfifo((folder_ / "two.safetensors").c_str(), 0600), 0);
  write_index(map_);
  EXPECT_THROW(ModelFiles(folder_.path()), Error);
}

TEST_F(ModelIndex, F50_PicklesAreNeverOpened) {
  const testing::TemporaryFolder pickles;
  publish_file(fs_, pickles / "pytorch_model.bin", "not even a pickle");
  try {
    const ModelFiles files(pickles.path());
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Code::kForeignCheckpoint);
    EXPECT_NE(std::string(e.what()).find("save_file"), std::string::npos) << e.what();
  }
  const testing::TemporaryFolder empty;
  EXPECT_THROW(ModelFiles(empty.path()), Error);
}

TEST_F(ModelIndex, RefusesAnIndexThatIsNone) {
  for (const char* text :
       {"", "[]", "{}", R"({"weight_map":[]})", R"({"weight_map":{"a":"x","a":"x"}})"}) {
    publish_file(fs_, folder_ / "model.safetensors.index.json", text);
    EXPECT_THROW(ModelFiles(folder_.path()), Error) << text;
  }
}

TEST_F(ModelIndex, PlansFilesByTheirBytes) {
  const auto tensor = [](const char* name, int64_t n) {
    return SafetensorsEntry{name, Element::kF32, {n}};
  };
  const auto plan = plan_model_files({tensor("x", 3), tensor("y", 2), tensor("z", 100)}, 20);
  ASSERT_EQ(plan.files.size(), 2u);
  EXPECT_EQ(plan.files[0].first, "model-00001-of-00002.safetensors");
  EXPECT_EQ(plan.files[0].second.size(), 2u);
  EXPECT_NE(plan.index.find(R"("z": "model-00002-of-00002.safetensors")"), std::string::npos);
  EXPECT_NE(plan.index.find(R"("total_size": 420)"), std::string::npos);
  EXPECT_EQ(plan_model_files({tensor("x", 3)}, 20).files[0].first, "model.safetensors");
  EXPECT_EQ(plan_model_files({}, 20).files.size(), 1u);
}

}  // namespace
}  // namespace troupe
