#include "troupe/train/forecast/key_traffic.h"

#include <gtest/gtest.h>

#include "troupe/train/forecast/layout_forecast.h"
#include "troupe/train/recipe/recipe_of_test.h"
#include "troupe/train/step/products_alone_test.h"

namespace troupe {
namespace {

Recipe mixtral(const std::string& model, int64_t context) {
  return recipe_of("model: {preset: mixtral-8x7b, max_positions: 8192" + model +
                   "}\ndata: {sequence: 4096}\ntrain: {micro_batch: 2, global_batch: 16}\n"
                   "parallel: {expert: 1, shard: none, context: " +
                   std::to_string(context) + "}");
}

double rows_of(const std::string& model, int64_t context) {
  const Recipe r = mixtral(model, context);
  return keys_from_others(r, 2, layer_config(r.model, 0));
}

TEST(KeyTraffic, CX6_TheFullestRankLacksAllRowsButItsOwn) {
  EXPECT_EQ(rows_of("", 1), 0);
  EXPECT_EQ(rows_of("", 2), 2 * 2048);
  EXPECT_EQ(rows_of("", 4), 2 * 3072);
}

TEST(KeyTraffic, CX6_AWindowBringsItsRowsBeforeTwoChunks) {
  EXPECT_EQ(rows_of(", window: 101", 4), 2 * 200);
  EXPECT_EQ(rows_of(", window: 4096", 4), 2 * 3072);
}

TEST(KeyTraffic, CX9_HeadsAreOwnOnesAndLatentsAreAll) {
  const Recipe r = mixtral("", 2);  // 8 key heads of 128
  const LayerConfig layer = layer_config(r.model, 0);
  EXPECT_EQ(exchanged_width(r.model, layer, 1), 2 * 8 * 128);
  EXPECT_EQ(exchanged_width(r.model, layer, 4), 2 * 2 * 128);
  EXPECT_EQ(exchanged_width(r.model, layer, 16), 2 * 128);
  EXPECT_EQ(made_of_latents(r.model, layer, 1), 0);
  const Recipe latent = recipe_of("model: {preset: deepseek-v3}");
  const LayerConfig first = layer_config(latent.model, 0);
  EXPECT_EQ(exchanged_width(latent.model, first, 4), 576);
  EXPECT_EQ(made_of_latents(latent.model, first, 4), 32 * 256);
}

TEST(KeyTraffic, HeadsOfOwnTokensLeaveAndComeBack) {
  Recipe r = mixtral("", 4);  // 32 query heads, 8 key heads, of 128
  const LayerConfig layer = layer_config(r.model, 0);
  EXPECT_EQ(numbers_exchanged(r, 2, layer, 1), 2.0 * 3072 * 2 * 8 * 128);
  r.parallel.context_method = ContextMethod::kHeads;
  EXPECT_EQ(numbers_exchanged(r, 2, layer, 1), 2.0 * 1024 * 3 / 4 * 2 * 40 * 128);
  EXPECT_EQ(numbers_exchanged(r, 2, layer, 2), 2.0 * 1024 * 3 / 4 * 40 * 128);
}

// With 64 k tokens a rank has the keys of two others, not of seven; and whatever travels while
// attention runs takes no time of its own.
TEST(KeyTraffic, ARingHasLessInMemoryAndHidesItsTransfers) {
  const auto forecast = [](const char* method, double bandwidth) {
    Recipe r = recipe_of(
        "model: {preset: mixtral-8x7b, max_positions: 65536}\ndata: {sequence: 65536}\n"
        "train: {micro_batch: 1, global_batch: 4}\nrun: {device: cpu}\n"
        "parallel: {expert: 1, shard: none, context: 8, context_method: " +
        std::string(method) + "}");
    Machine machine = products_alone();
    machine.inside = machine.between = {.bandwidth = bandwidth};
    machine.ranks_per_host = 8;
    machine.attention = 1e14;
    return forecast_layout(r, 8, machine, false);
  };
  // Attention's core takes longer than keys at this rate, which are all of forward's transfers.
  const LayoutForecast keys = forecast("keys", 1e11), ring = forecast("ring", 1e11);
  EXPECT_LT(ring.rank.peak.total(), keys.rank.peak.total());
  EXPECT_LT(ring.step_seconds, keys.step_seconds);
  // On links that are slower than attention the rest is waited for.
  const double slow = forecast("ring", 1e9).step_seconds;
  EXPECT_GT(slow, 1.05 * ring.step_seconds);
  EXPECT_LT(slow, forecast("keys", 1e9).step_seconds);
}

TEST(KeyTraffic, ActivationsAreDividedAndKeysTakeTheirTime) {
  const auto forecast = [](const Recipe& r, double bandwidth) {
    Machine machine = products_alone();
    machine.inside = machine.between = {.bandwidth = bandwidth};
    machine.ranks_per_host = 8;
    machine.attention = 1e30;
    return forecast_layout(r, 8, machine, true);
  };
  const LayoutForecast one = forecast(mixtral("", 1), 1e12), two = forecast(mixtral("", 2), 1e12);
  EXPECT_NEAR(two.rank.peak.activations, one.rank.peak.activations / 2,
              0.1 * one.rank.peak.activations);
  EXPECT_EQ(two.work.microbatches, 2 * one.work.microbatches);  // half as many replicas
  // On slow links the keys of a window of 101 take less time than those of whole rows.
  const double whole = forecast(mixtral("", 4), 1e9).step_seconds;
  const double window = forecast(mixtral(", window: 101", 4), 1e9).step_seconds;
  const double keys = 2.0 * (3072 - 200) * 2048 * 2 / 1e9 * 3 * 32 * 4;  // layers, microbatches
  EXPECT_LT(whole - window, 1.01 * keys);
  EXPECT_GT(whole - window, 0.8 * keys);  // sums of gradients hide the last backward's
}

}  // namespace
}  // namespace troupe
