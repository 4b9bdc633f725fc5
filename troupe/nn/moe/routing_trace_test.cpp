#include "troupe/nn/moe/routing_trace.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "troupe/core/check.h"
#include "troupe/core/file/file.h"
#include "troupe/core/file/publish.h"
#include "troupe/testing/temporary_folder.h"

namespace troupe {
namespace {

// Choices of each token without repetition, some of them masked.
at::Tensor distinct(int64_t T, int64_t K, int64_t experts) {
  const at::Tensor first = at::randint(0, experts / K, {T, K}, at::kInt);
  const at::Tensor ids = first + at::arange(K, at::kInt) * static_cast<int32_t>(experts / K);
  return ids.masked_fill(at::rand({T, K}).lt(0.1), -1);
}

TEST(RoutingTrace, R15_WhatWasRecordedIsReplayed) {
  RoutingTrace trace;
  const at::Tensor ids = at::tensor({0, 3, 1, 2, -1, -1}, at::kInt).reshape({3, 2});
  trace.record(1, 0, ids, 4);
  EXPECT_TRUE(trace.replay(1, 0, at::kCPU).equal(ids));
  EXPECT_TRUE(trace.counts(1, 0).equal(at::tensor({1, 1, 1, 1}, at::kLong)));
  EXPECT_THROW(trace.replay(1, 1, at::kCPU), Error);
  EXPECT_THROW(trace.record(1, 0, ids, 4), Error);
}

TEST(RoutingTrace, R15_CountsSumToTokensTimesChoices) {
  RoutingTrace trace;
  const at::Tensor first = at::randint(0, 60, {100, 1}, at::kInt);
  trace.record(0, 2, (first + at::arange(8, at::kInt)).remainder(60), 60);
  EXPECT_EQ(trace.counts(0, 2).sum().item<int64_t>(), 800);
  EXPECT_EQ(trace.counts(0, 2).size(0), 60);
}

TEST(RoutingTrace, R15_AFileHoldsItAllInTwoOrFourBytes) {
  const testing::TemporaryFolder folder;
  const std::string path = folder / "trace";
  Fs fs;
  RoutingTrace trace;
  const at::Tensor few = distinct(50, 8, 64);
  const at::Tensor many = distinct(50, 8, 70000);
  trace.record(0, 0, few, 64);
  trace.save(fs, path);
  const auto small = static_cast<int64_t>(read_file(path).size());
  EXPECT_LT(small, 50 * 8 * 2 + 64 * 8 + 64);
  trace.record(3, 1, many, 70000);
  trace.record(4, 1, at::zeros({0, 2}, at::kInt), 4);
  trace.save(fs, path);
  const RoutingTrace back = RoutingTrace::load(path);
  EXPECT_EQ(back.size(), 3);
  EXPECT_TRUE(back.replay(0, 0, at::kCPU).equal(few));
  EXPECT_TRUE(back.replay(3, 1, at::kCPU).equal(many));
  EXPECT_EQ(back.replay(4, 1, at::kCPU).size(1), 2);
}

TEST(RoutingTrace, R15_TheFileIsWhatTheHeaderSays) {
  const testing::TemporaryFolder folder;
  const std::string path = folder / "trace";
  Fs fs;
  RoutingTrace trace;
  trace.record(1, 5, at::tensor({2, 0, -1, -1}, at::kInt).reshape({2, 2}), 3,
               at::tensor({1.0f, -2.0f, 0.5f, 0.0f, 0.0f, 0.0f}).reshape({2, 3}));
  trace.save(fs, path);
  const std::string text = "troupe-trace 1\n1 5 3 2 2 1\n";
  const auto eight = [](char n) { return std::string(1, n) + std::string(7, '\0'); };
  const std::string counts = eight(1) + eight(0) + eight(1);
  const std::string ids("\x02\0\0\0\xff\xff\xff\xff", 8);
  const std::string logits("\0\0\x80\x3f\0\0\0\xc0\0\0\0\x3f", 12);
  EXPECT_EQ(read_file(path), text + counts + ids + logits + std::string(12, '\0'));
  const RoutingTrace back = RoutingTrace::load(path);
  EXPECT_TRUE(back.counts(1, 5).equal(at::tensor({1, 0, 1}, at::kLong)));
  EXPECT_TRUE(back.logits(1, 5).equal(trace.logits(1, 5)));
}

TEST(RoutingTrace, E22_RefusesToRecordWhatIsNoChoice) {
  RoutingTrace trace;
  const auto record = [&](std::initializer_list<int> ids) {
    trace.record(0, 0, at::tensor(std::vector<int>(ids), at::kInt).reshape({1, 2}), 4);
  };
  EXPECT_THROW(record({1, 1}), Error);
  EXPECT_THROW(record({1, 4}), Error);
  EXPECT_THROW(record({1, -2}), Error);
  EXPECT_NO_THROW(record({-1, -1}));
  EXPECT_THROW(trace.record(0, 1, at::zeros({2, 1}, at::kInt), 4, at::zeros({2, 3})), Error);
}

TEST(RoutingTrace, RefusesADamagedFile) {
  const testing::TemporaryFolder folder;
  const std::string path = folder / "trace";
  Fs fs;
  RoutingTrace trace;
  trace.record(0, 0, at::tensor({0, 1, 2, 3}, at::kInt).reshape({2, 2}), 4);
  trace.save(fs, path);
  const std::string good = read_file(path);
  const auto refused = [&](const std::string& text) {
    publish_file(fs, path, text);
    EXPECT_THROW(RoutingTrace::load(path), Error) << text;
  };
  refused("troupe-trace 2\n");
  refused("troupe-trace 1\n0 0 4 2");
  refused(good.substr(0, good.size() - 1));
  refused("troupe-trace 1\n0 0 4 999999999999 2 0\n");
  refused("troupe-trace 1\n0 0 999999999999 1 1 0\n");
  refused("troupe-trace 1\n0 0 2000000000 1 1 0\n");  // no room is made for what is not there
  refused("troupe-trace 1\n0 0 4 1 5 0\n");
  refused("troupe-trace 1\n0 0 4 1 1 2\n");
  refused("troupe-trace 1\n0 x 4 1 1 0\n");
  const size_t counts = good.rfind('\n') + 1, ids = counts + 4 * 8;
  const auto with = [&](size_t at, char value) {
    std::string bad = good;
    bad[at] = value;
    return bad;
  };
  refused(with(counts, 2));         // counts that are not those of the choices
  refused(with(ids, 9));            // an expert that there is not
  refused(with(ids, 1));            // E22: twice
  refused(good + good.substr(15));  // the same record again
}

}  // namespace
}  // namespace troupe
