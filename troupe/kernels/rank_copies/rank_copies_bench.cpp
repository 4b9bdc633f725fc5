#include <algorithm>
#include <random>
#include <vector>

#include "troupe/kernels/rank_copies/rank_copies.h"
#include "troupe/testing/bench.h"
#include "troupe/testing/matrix.h"

namespace troupe {
namespace {

using testing::Buffer;

// Each token has 8 of 64 experts, which are spread over `ranks`.
struct Problem {
  explicit Problem(const benchmark::State& state)
      : T(state.range(0)),
        ranks(state.range(1)),
        list{.tokens = T, .choices = 8, .experts = 64, .targets = ranks},
        ids(8 * T),
        owners(64),
        replicas(64),
        row_target(8 * T),
        copy_target(T * list.width()),
        counts(3 * ranks),
        scores(8 * T),
        local(64 * ranks),
        slot(T * list.width()),
        message(T * list.width() * 16),
        token(T * list.width()) {
    std::mt19937 rng(1);
    std::vector<int32_t> experts(64);
    for (int32_t e = 0; e < 64; ++e) experts[e] = e;
    for (int64_t t = 0; t < T; ++t) {
      std::ranges::shuffle(experts, rng);
      std::copy_n(experts.begin(), 8, ids.data() + 8 * t);
    }
    for (int64_t e = 0; e < 64; ++e) {
      owners[e] = e * ranks / 64;
      replicas[e] = 1;
    }
    list.ids = ids.data();
    list.owners = owners.data();
    list.replicas = replicas.data();
    list.row_target = row_target.data();
    list.copy_target = copy_target.data();
    list.counts = counts.data();
    list_copies_cpu(list, serial);
    int64_t copies = 0;
    for (int32_t w = 0; w < ranks; ++w) {
      for (size_t s = 0; s < copy_target.size(); ++s) {
        if (copy_target[s] == w) slot[copies++] = static_cast<int32_t>(s);
      }
    }
    std::fill(slot.data() + copies, slot.data() + slot.size(), -1);
    tell = {.tokens = T,
            .choices = 8,
            .experts = 64,
            .width = list.width(),
            .copies = static_cast<int64_t>(slot.size()),
            .words = 8,
            .ids = ids.data(),
            .scores = scores.data(),
            .row_target = row_target.data(),
            .copy_target = copy_target.data(),
            .copy_slot = slot.data(),
            .local = local.data(),
            .token = token.data(),
            .message = message.data()};
  }
  int64_t T, ranks;
  ListCopies list;
  TellCopies tell;
  Buffer<int32_t> ids;
  Buffer<int64_t> owners, replicas;
  Buffer<int32_t> row_target, copy_target, counts, scores, local, slot, message;
  Buffer<int64_t> token;
};

void list_cpu(benchmark::State& state) {
  Problem p(state);
  testing::measure_cpu(state, p.list, list_copies_cpu);
}
void tell_cpu(benchmark::State& state) {
  Problem p(state);
  testing::measure_cpu(state, p.tell, tell_copies_cpu);
}
void sizes(benchmark::internal::Benchmark* b) {
  b->Args({16384, 2})->Args({16384, 8})->Args({16384, 64})->Unit(benchmark::kMicrosecond);
}
BENCHMARK(list_cpu)->Apply(sizes);
BENCHMARK(tell_cpu)->Apply(sizes);

#ifdef TROUPE_CUDA
void list_cuda(benchmark::State& state) {
  if (testing::no_gpu(state)) return;
  Problem p(state);
  testing::measure_cuda(state, p.list, list_copies_cuda, 10);
}
void tell_cuda(benchmark::State& state) {
  if (testing::no_gpu(state)) return;
  Problem p(state);
  testing::measure_cuda(state, p.tell, tell_copies_cuda, 10);
}
BENCHMARK(list_cuda)->Apply(sizes);
BENCHMARK(tell_cuda)->Apply(sizes);
#endif

}  // namespace
}  // namespace troupe
