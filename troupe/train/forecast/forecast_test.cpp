#include "troupe/train/forecast/forecast.h"

#include <gtest/gtest.h>

#include <sstream>

#include "troupe/nn/config/costs.h"
#include "troupe/train/recipe/recipe_of_test.h"

namespace troupe {
namespace {

Recipe small_recipe(const std::string& more) {
  return recipe_of(more,
                   "data: {sequence: 64}\ntrain: {global_batch: 8, micro_batch: 8, steps: 10}\n"
                   "checkpoint: {dir: run}\n");
}

constexpr double kGiB = double{1 << 30};

// One GPU without sharding takes 16 bytes a parameter: bf16 weights, f32 gradients, the rest of the
// masters, moments; the gradients of a single microbatch stay in bf16.
TEST(Forecast, StatesOfAPublishedModelAreThoseOfTheTable) {
  const std::string model = "model: {preset: olmoe-1b-7b}\ntrain: {global_batch: 8, micro_batch: ";
  for (const int micro : {1, 8}) {
    const Recipe r = small_recipe(model + std::to_string(micro) + "}");
    const MemoryForecast m = forecast_memory(r, /*on_gpu=*/true);
    const double states = m.weights + m.gradients + m.masters + m.moments;
    const double routers = 16 * 64 * 4;  // their f32 counts
    EXPECT_DOUBLE_EQ(states, (micro == 1 ? 16.0 : 14.0) * 6919161856.0 + routers);
    EXPECT_EQ(m.overlap > 0, micro == 8);
  }
}

// Row 138: `troupe plan` has an answer for each published model, with its own number of parameters.
TEST(Forecast, EveryPublishedModelHasOne) {
  int64_t models = 0;
  for (const std::string_view name : ModelConfig::presets()) {
    const Recipe r = small_recipe("model: {preset: " + std::string(name) + "}");
    EXPECT_NO_THROW(validate(r, {})) << name;
    const ModelCosts costs = costs_of(r.model);
    const MemoryForecast m = forecast_memory(r, /*on_gpu=*/true);
    // Weights of 2 bytes; biases of routers, and MTP modules, beside the published number.
    const auto all = static_cast<double>(costs.params() + costs.mtp_params);
    EXPECT_NEAR(m.weights / (2 * all), 1, 1e-3) << name;
    EXPECT_GT(m.activations, 0) << name;
    const double a_second = 1e15;
    EXPECT_NEAR(forecast_time(r, plan_of(r), a_second).step_seconds,
                8 * 64 * costs.flops_per_token(64) / a_second, 1e-9)
        << name;
    ++models;
  }
  EXPECT_GT(models, 25);
}

TEST(Forecast, StatesFollowPrecisionOptimizerAndWhatIsFrozen) {
  const std::string model =
      "model: {layers: 2, width: 32, heads: 4, vocab: 256, moe: {experts: 4, "
      "hidden: 64}}\n";
  const auto count = static_cast<double>(costs_of(small_recipe(model).model).params());
  const MemoryForecast cpu = forecast_memory(small_recipe(model), false);
  EXPECT_EQ(cpu.weights, 4 * count);
  EXPECT_EQ(cpu.gradients, 4 * count);
  EXPECT_EQ(cpu.masters, 0);
  const double routers = 2 * 4 * 4;  // f32 counts of two layers
  EXPECT_EQ(cpu.moments, 8 * count + routers);
  const MemoryForecast small =
      forecast_memory(small_recipe(model + "train: {optimizer: {moments: bf16}}"), false);
  EXPECT_EQ(small.moments, 4 * count + routers);
  const MemoryForecast coded =
      forecast_memory(small_recipe(model + "train: {optimizer: {moments: int8}}"), false);
  EXPECT_NEAR(coded.moments, 2 * (1 + 4.0 / 256) * count + routers, 1e-6 * count);
  const MemoryForecast fp64 =
      forecast_memory(small_recipe(model + "train: {precision: fp64}"), false);
  EXPECT_EQ(fp64.weights, 8 * count);
  EXPECT_EQ(fp64.moments, 16 * count + routers);
  const MemoryForecast adafactor =
      forecast_memory(small_recipe(model + "train: {optimizer: {kind: adafactor}}"), false);
  EXPECT_LT(adafactor.moments, 0.5 * count);
  const MemoryForecast soap =
      forecast_memory(small_recipe(model + "train: {optimizer: {kind: soap}}"), false);
  EXPECT_GT(soap.moments, 10 * count);
  const MemoryForecast lion =
      forecast_memory(small_recipe(model + "train: {optimizer: {kind: lion}}"), false);
  EXPECT_EQ(lion.moments, 4 * count + routers);
  const MemoryForecast frozen = forecast_memory(
      small_recipe(model + "train: {optimizer: {groups: [{names: '*', frozen: true}]}}"), false);
  EXPECT_EQ(frozen.gradients + frozen.moments, routers);
  EXPECT_EQ(frozen.weights, 4 * count);
}

// The head makes the gradient of its table, in f32, where the table is trained, tied or not.
TEST(Forecast, AFrozenTableHasNoGradientInTheHead) {
  const auto workspace = [](const std::string& keys, const std::string& groups) {
    return forecast_memory(small_recipe("{model: {layers: 2, width: 128, heads: 2, ffn: 64, vocab: "
                                        "65536, max_positions: 64" +
                                        keys + "}, train: {micro_batch: 1, optimizer: {groups: [" +
                                        groups + "]}}}"),
                           /*on_gpu=*/true)
        .workspace;
  };
  constexpr double kTable = 4.0 * 65536 * 128;
  for (const std::string tied : {"", ", tie_embeddings: true"}) {
    EXPECT_GE(workspace(tied, ""), workspace(tied, "{names: '*', frozen: true}") + kTable) << tied;
    EXPECT_EQ(workspace(tied + ", lora: {rank: 2}", ""),
              workspace(tied, "{names: '*', frozen: true}"))
        << tied;
  }
}

// Copies of experts' weights in 8 bits: of both orders on a GPU; on the CPU only where they are
// kept.
TEST(Forecast, CountsTheRoundedCopiesOfExpertsWeights) {
  const std::string model =
      "model: {width: 128, vocab: 64, max_positions: 64, layers: 2, heads: 2, moe: {experts: 4, "
      "hidden: 256}}\n";
  const double experts = 2 * 4 * 3 * 128 * 256;
  const auto more = [&](bool on_gpu, int64_t micro_batch, const std::string& fp8) {
    const std::string sizes =
        "train: {precision: bf16, global_batch: 4, micro_batch: " + std::to_string(micro_batch);
    return forecast_memory(small_recipe(model + sizes + ", fp8: " + fp8 + "}"), on_gpu).weights -
           forecast_memory(small_recipe(model + sizes + "}"), on_gpu).weights;
  };
  EXPECT_EQ(more(true, 2, "{}"), 2 * experts);
  EXPECT_EQ(more(true, 4, "{}"), experts);
  EXPECT_EQ(more(true, 2, "{weights: on_use}"), experts);
  EXPECT_EQ(more(true, 2, "{skip_last: 1}"), experts);
  EXPECT_EQ(more(false, 2, "{}"), experts);
  EXPECT_EQ(more(false, 2, "{weights: on_use}"), 0);
  const std::string wide = "{attention: true, weights: on_use}";
  EXPECT_EQ(more(true, 2, wide), experts + 2 * 4 * 128 * 128);
}

TEST(Forecast, Q8_34_CountsTheHistoriesOfRecipeDelayed) {
  const auto moments = [](const std::string& fp8) {
    return forecast_memory(
               small_recipe(
                   "model: {width: 128, vocab: 64, max_positions: 64, layers: 2, heads: 2, "
                   "moe: {experts: 4, hidden: 256}}\n"
                   "train: {precision: bf16, global_batch: 4, micro_batch: 2, fp8: {" +
                   fp8 + "}}"),
               true)
        .moments;
  };
  EXPECT_EQ(moments("recipe: delayed, history: 5") - moments("recipe: tensor"), 2 * 4 * 4 * 5);
}

// Of the dense feed-forward and the shared expert too, beside the experts of one layer.
TEST(Forecast, CountsTheRoundedCopiesOfFeedForwards) {
  const std::string model =
      "model: {width: 128, vocab: 64, max_positions: 64, layers: 2, heads: 2, first_dense: 1, "
      "ffn: 384, moe: {experts: 4, hidden: 256, shared: {experts: 1}}}\n";
  const auto weights = [&](const std::string& fp8) {
    const std::string sizes = "train: {precision: bf16, global_batch: 4, micro_batch: 2";
    return forecast_memory(small_recipe(model + sizes + fp8 + "}"), true).weights;
  };
  const double experts = 4 * 3 * 128 * 256, ffn = 3 * 128 * 384, shared = 3 * 128 * 256;
  EXPECT_EQ(weights(", fp8: {}") - weights(""), 2 * experts);
  EXPECT_EQ(weights(", fp8: {ffn: true}") - weights(""), 2 * (experts + ffn + shared));
}

// Codes and scales in place of bf16 values; a checkpoint does not hold them. One parameter of a layer
// is unpacked at a time.
TEST(Forecast, CountsFrozenWeightsInFewBits) {
  const auto with = [](const std::string& frozen) {
    return small_recipe(
        "model: {width: 128, vocab: 64, max_positions: 64, layers: 2, heads: 2, moe: {experts: 4, "
        "hidden: 256}, lora: {rank: 2, targets: [attention]" +
        frozen + "}}\ntrain: {precision: bf16, global_batch: 4, micro_batch: 2}");
  };
  constexpr int64_t kExperts = int64_t{2} * 4 * 3 * 128 * 256;
  const Recipe full = with("");
  for (const LowBitFormat format : {LowBitFormat::kNf4, LowBitFormat::kInt8, LowBitFormat::kFp8}) {
    const std::string name = to_text(format);
    const Recipe packed = with(", frozen: {format: " + name + "}");
    const MemoryForecast a = forecast_memory(packed, true), b = forecast_memory(full, true);
    const auto bytes = static_cast<double>(low_bit_bytes(format, kExperts));
    EXPECT_EQ(b.weights - a.weights, 2 * kExperts - bytes);
    EXPECT_EQ(b.moments + b.masters + b.gradients, a.moments + a.masters + a.gradients);
    EXPECT_EQ(checkpoint_bytes(full, true) - checkpoint_bytes(packed, true), 2 * kExperts);
  }
}

// Of latent attention's projections those that fit: q and out, not those of a latent of 100.
TEST(Forecast, CountsTheRoundedCopiesOfLatentProjectionsThatFit) {
  const std::string model =
      "model: {width: 128, vocab: 64, max_positions: 64, layers: 2, heads: 2, mla: {kv_rank: 100, "
      "nope_dim: 64, rope_dim: 64, value_dim: 64}, moe: {experts: 4, hidden: 256}}\n"
      "train: {precision: bf16, global_batch: 4, micro_batch: 2, fp8: {attention: ";
  const double more = forecast_memory(small_recipe(model + "true}}"), true).weights -
                      forecast_memory(small_recipe(model + "false}}"), true).weights;
  EXPECT_EQ(more, 2 * 2 * (2 * 128 * 128 + 128 * 2 * 64));
}

// A direction is of a whole matrix: where masters are f32 numbers, of all of a parameter at once.
TEST(Forecast, MuonsDirectionsAreCountedWhereBackwardTakesLess) {
  const std::string model =
      "model: {layers: 2, width: 256, heads: 4, vocab: 256, ffn: 4096}\ndata: {sequence: 8}\n"
      "train: {micro_batch: 1, optimizer: {kind: ";
  const auto at_update = [&](const std::string& more, double bytes_each) {
    const MemoryForecast m = forecast_memory(small_recipe(model + more), false);
    EXPECT_GT(m.update, 0) << more;
    EXPECT_NEAR(m.activations + m.workspace - m.overlap + m.update, bytes_each * 2 * 4096 * 256, 1);
    EXPECT_DOUBLE_EQ(m.total(), m.weights + m.gradients + m.masters + m.moments + m.runtime +
                                    bytes_each * 2 * 4096 * 256);
  };
  at_update("muon}}", 4 * 7);
  at_update("muon}, precision: fp16}", 4 * 7);
  at_update("muon}, precision: bf16}", 4 * 8);
  EXPECT_EQ(forecast_memory(small_recipe(model + "adamw}}"), false).update, 0);
  const std::string kept = "data: {sequence: 512}\ntrain: {optimizer: {kind: muon}}\n";
  const std::string small = "model: {layers: 2, width: 64, heads: 4, vocab: 256, ffn: 128}\n";
  EXPECT_EQ(forecast_memory(small_recipe(small + kept), false).update, 0);
}

TEST(Forecast, LessIsKeptOfASmallerMicrobatchAndWhatIsComputedAgain) {
  const std::string model =
      "model: {layers: 6, width: 64, heads: 4, vocab: 256, moe: {experts: 4, "
      "hidden: 64}}\n";
  const double whole = forecast_memory(small_recipe(model), false).activations;
  EXPECT_NEAR(forecast_memory(small_recipe(model + "train: {micro_batch: 4}"), false).activations,
              whole / 2, 1);
  EXPECT_LT(forecast_memory(small_recipe(model + "train: {recompute: '1'}"), false).activations,
            whole / 3);
  EXPECT_LT(forecast_memory(small_recipe(model + "train: {precision: bf16}"), false).activations,
            0.6 * whole);
}

// Of six blocks that keep as much, what two keep is there at once; on a CPU all is.
TEST(Forecast, OffloadedLayersKeepTheirInputAndTwoAreInFlight) {
  const std::string model =
      "model: {layers: 6, width: 64, heads: 4, vocab: 256, moe: {experts: 4, "
      "hidden: 64}}\n";
  const auto of = [&](const std::string& train, bool on_gpu) {
    return forecast_memory(small_recipe(model + train), on_gpu);
  };
  const std::string offload = "train: {offload_layers: 6}";
  const MemoryForecast whole = of("", true), less = of(offload, true);
  EXPECT_LT(less.activations, whole.activations / 2);
  EXPECT_GT(less.workspace, whole.workspace);
  EXPECT_LT(less.total(), whole.total());
  EXPECT_EQ(of(offload, false).total(), of("", false).total());
}

TEST(Forecast, OffloadedStateIsInHostMemoryAndPassesThroughBuffers) {
  const std::string model =
      "model: {layers: 6, width: 64, heads: 4, vocab: 256, moe: {experts: 4, "
      "hidden: 64}}\n";
  const std::string offload = "train: {offload_state: true}";
  const Recipe plain = small_recipe(model), offloaded = small_recipe(model + offload);
  const MemoryForecast whole = forecast_memory(plain, true),
                       less = forecast_memory(offloaded, true);
  EXPECT_EQ(whole.host, 0);
  EXPECT_EQ(less.host + less.masters + less.moments, whole.masters + whole.moments);
  EXPECT_GT(less.host, 0.9 * (whole.masters + whole.moments));
  EXPECT_EQ(less.masters, 0);
  EXPECT_EQ(host_state(offloaded, true), less.host);
  // Told where it saves a part worth telling.
  const auto told = [](const std::string& preset) {
    std::string out;
    for (const MemoryCut& cut : memory_cuts(small_recipe(preset), /*on_gpu=*/true))
      out += cut.set + ' ';
    return out;
  };
  EXPECT_EQ(told(model).find("train.offload_state"), std::string::npos);
  EXPECT_NE(told("model: {preset: olmoe-1b-7b}").find("train.offload_state"), std::string::npos);
  EXPECT_EQ(checkpoint_bytes(offloaded, true), checkpoint_bytes(plain, true));
  EXPECT_EQ(forecast_memory(offloaded, false).total(), forecast_memory(plain, false).total());
  EXPECT_EQ(host_state(offloaded, false), 0);
}

TEST(Forecast, HostMemoryThatIsNotFreeIsRefused) {
  constexpr int64_t kFree = int64_t{8} << 30;
  EXPECT_TRUE(judge_host_state(3.0 * (1 << 30), 2, kFree).fits);
  EXPECT_TRUE(judge_host_state(3.0 * (1 << 30), 2, -1).fits);
  const HostVerdict much = judge_host_state(5.0 * (1 << 30), 2, kFree);
  EXPECT_FALSE(much.fits);
  EXPECT_NE(much.line.find("E7006 10.0 GiB of host memory for masters and optimizer state, of 2 "
                           "ranks here; 8.0 GiB are free"),
            std::string::npos)
      << much.line;
  EXPECT_NE(much.line.find("train.optimizer.moments=int8"), std::string::npos);
}

TEST(Forecast, ARunThatDoesNotFitIsToldWithTheCheapestCuts) {
  const Recipe r = small_recipe(
      "model: {layers: 6, width: 256, heads: 4, vocab: 8192, ffn: 1024}\ndata: {sequence: 256}");
  const double needed = forecast_memory(r, false).total();
  const MemoryVerdict easy = judge_memory(r, false, 2 * needed);
  EXPECT_TRUE(easy.fits && !easy.warns);
  EXPECT_TRUE(easy.line.starts_with("memory ")) << easy.line;
  const MemoryVerdict tight = judge_memory(r, false, needed / 0.95);
  EXPECT_TRUE(tight.fits && tight.warns);
  EXPECT_TRUE(tight.line.starts_with("W7006 memory ")) << tight.line;
  EXPECT_NE(tight.line.find("train.micro_batch=4 (-"), std::string::npos) << tight.line;
  EXPECT_NE(tight.line.find("train.optimizer.moments=bf16 (-"), std::string::npos) << tight.line;
  const MemoryVerdict over = judge_memory(r, false, needed / 2);
  EXPECT_FALSE(over.fits);
  EXPECT_TRUE(over.line.starts_with("E7006 memory ")) << over.line;
}

TEST(Forecast, TimeIsTheFormulasAtTheRate) {
  const Recipe r = small_recipe("model: {layers: 2, width: 32, heads: 4, vocab: 256, ffn: 64}");
  const TimeForecast t = forecast_time(r, plan_of(r), 1e9);
  EXPECT_DOUBLE_EQ(t.step_flops, 512 * costs_of(r.model).flops_per_token(64));
  EXPECT_DOUBLE_EQ(t.step_seconds, t.step_flops / 1e9);
  EXPECT_NEAR(t.run_seconds, 10 * t.step_seconds, 1e-9);
}

TEST(Forecast, TheHostsMemoryIsKnown) {
  EXPECT_GT(host_memory(), int64_t{1} << 28);
  EXPECT_EQ(in_gib(kGiB * 74.84), "74.8");
  EXPECT_EQ(in_gib(kGiB / 4), "0.25");
}

TEST(Forecast, UpdatesInBackwardKeepTheGradientsOfTwoUnits) {
  const std::string model =
      "model: {layers: 6, width: 64, heads: 4, vocab: 256, moe: {experts: 4, hidden: 64}}\n";
  const auto of = [&](const std::string& train) {
    return forecast_memory(small_recipe(model + "train: {clip: 0" + train + "}"), true);
  };
  const std::string early = ", update: in_backward";
  const auto batch = [](const std::string& micro) {
    return ", global_batch: 8, micro_batch: " + micro;
  };
  const MemoryForecast whole = of(batch("8")), less = of(batch("8") + early);
  EXPECT_LT(less.gradients, 0.5 * whole.gradients);
  EXPECT_GT(less.gradients, 0.2 * whole.gradients);  // two of six layers
  EXPECT_EQ(less.overlap, 0);
  EXPECT_EQ(less.weights, whole.weights);
  // Gradients of several microbatches add up: all of them are kept.
  EXPECT_EQ(of(batch("4") + early).gradients, of(batch("4")).gradients);
}

}  // namespace
}  // namespace troupe
