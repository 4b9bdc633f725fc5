// Times every tile of the generic grouped product (kernels/grouped_gemm) on the GPU that is here, on
// a Hopper GPU too, whose plain products otherwise take kernels of their own:
//
//   gemm_sweep [--only TEXT] [--rounds N] [--gate] [--within 0.95]
//
// For each product of MoE layers of known shapes, bf16, one line: the time of each tile, the chosen
// one (gemm_plan.h), the best one, and the best's time over the chosen one's. Tiles take turns, L2
// is cleared before each launch, medians count; what falls below `within` is measured again, with
// twice as many rounds. At the end the entry for gemm_table.cpp that these times give, and the least
// ratio it would have had. --gate: ends with 1 where a chosen tile is below `within`. --only: the
// products whose name contains TEXT. 2 where it cannot run.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "troupe/core/device/cuda_check.h"
#include "troupe/core/number/round.h"
#include "troupe/kernels/grouped_gemm/gemm_plan.h"
#include "troupe/kernels/grouped_gemm/grouped_gemm.h"
#include "troupe/kernels/grouped_gemm/launch.cuh"

namespace troupe {
namespace {

constexpr int64_t kFlushBytes = int64_t{1} << 28;
constexpr double kMsOfATile = 60;  // in all of its rounds
constexpr int kTries = 3;

struct Options {
  std::string only;
  int rounds = 0;  // 0: as many as fit into kMsOfATile, 7 to 41
  bool gate = false;
  double within = 0.95;
};

// Rows by each expert's [N, K]; or weight gradients, [M, N] summed over each expert's rows.
struct Product {
  std::string name;
  bool weight;
  int64_t rows, experts, n, k;  // k: M of a weight gradient
  bool transpose_b = true, gather = false;

  GemmProblem problem() const {
    return {.dtype = Dtype::kBF16,
            .experts = experts,
            .rows = weight ? k : rows,
            .rows_are_routed = !weight,
            .cols = n,
            .aligned = true};
  }
  int64_t bytes() const {
    const int64_t weights = experts * n * k;
    return 2 * (rows * n + rows * k + weights) + 4 * (rows + experts + 1);
  }
  double flops() const { return 2.0 * static_cast<double>(rows) * static_cast<double>(n * k); }
};

struct Layer {
  const char* name;
  int64_t rows, width, hidden, experts;  // rows: tokens times choices
};

constexpr Layer kLayers[] = {{"OLMoE", 65536, 2048, 1024, 64},
                             {"Mixtral", 16384, 4096, 14336, 8},
                             {"Qwen3-30B", 65536, 2048, 768, 128},
                             {"DeepSeek-V3/8", 32768, 7168, 2048, 32},
                             {"DeepSeek-V2-Lite", 49152, 2048, 1408, 64},
                             {"S7-256", 65536, 1536, 256, 128},
                             {"small", 8192, 512, 320, 16},
                             {"tiny", 1024, 256, 128, 8}};

std::vector<Product> products(const Options& options) {
  std::vector<Product> all;
  for (const Layer& l : kLayers) {
    const std::string name = l.name;
    const int64_t R = l.rows, D = l.width, F = l.hidden, E = l.experts;
    all.push_back({name + " up", false, R, E, 2 * F, D, true, true});
    all.push_back({name + " down", false, R, E, D, F});
    all.push_back({name + " dX", false, R, E, D, 2 * F, false});
    all.push_back({name + " dW1", true, R, E, D, 2 * F});
    all.push_back({name + " dW2", true, R, E, F, D});
  }
  for (const int64_t rank : {16, 64}) {  // LoRA of OLMoE's experts: narrow results
    const std::string name = "rank " + std::to_string(rank);
    all.push_back({name + " down", false, 65536, 64, rank, 2048});
    all.push_back({name + " dW", true, 65536, 64, rank, 2048});
  }
  std::erase_if(all,
                [&](const Product& p) { return p.name.find(options.only) == std::string::npos; });
  TROUPE_CHECK(!all.empty(), "no product's name contains", options.only);
  return all;
}

// Random numbers, near enough to normal: zeros are faster on a chip that its power limits.
__global__ void fill_kernel(BF16* data, int64_t n, uint32_t seed) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n;
       i += int64_t{gridDim.x} * blockDim.x) {
    uint64_t x = static_cast<uint64_t>(i + 1) * 0x9E3779B97F4A7C15ull + seed;
    float sum = 0;
    for (int j = 0; j < 4; ++j) {
      x ^= x >> 29, x *= 0xBF58476D1CE4E5B9ull, x ^= x >> 32;
      sum += static_cast<float>(x >> 40) * 0x1p-24f - 0.5f;
    }
    data[i] = BF16(sum);
  }
}

class Memory {
 public:
  explicit Memory(int64_t bytes) { TROUPE_CUDA_CHECK(cudaMalloc(&data_, bytes)); }
  ~Memory() { (void)cudaFree(data_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  void* data() const { return data_; }
  MutRef random(int64_t rows, int64_t cols, uint32_t seed) const {
    fill_kernel<<<1024, 256>>>(static_cast<BF16*>(data_), rows * cols, seed);
    TROUPE_LAUNCH_CHECK(nullptr);
    return {data_, Dtype::kBF16, rows, cols, cols};
  }
  const int32_t* put(const std::vector<int32_t>& v) const {
    TROUPE_CUDA_CHECK(
        cudaMemcpy(data_, v.data(), v.size() * sizeof(int32_t), cudaMemcpyHostToDevice));
    return static_cast<const int32_t*>(data_);
  }

 private:
  void* data_ = nullptr;
};

// Uneven, as routing is: experts have between a half and one and a half times the mean.
std::vector<int32_t> offsets(int64_t rows, int64_t experts) {
  std::vector<int64_t> upto(experts + 1);
  for (int64_t e = 0; e < experts; ++e) upto[e + 1] = upto[e] + 64 + e * 37 % 128;
  std::vector<int32_t> out(experts + 1);
  for (int64_t e = 0; e <= experts; ++e) {
    out[e] = static_cast<int32_t>(rows * upto[e] / upto[experts]);
  }
  return out;
}

class Operands {
 public:
  explicit Operands(const Product& p)
      : product_(p),
        a_(2 * p.rows * p.k),
        b_(2 * p.n * (p.weight ? p.rows : p.experts * p.k)),
        c_(2 * p.n * (p.weight ? p.experts * p.k : p.rows)),
        offset_(4 * (p.experts + 1)),
        src_(4 * p.rows) {
    a_ref_ = a_.random(p.rows, p.k, 1);
    const int64_t b_cols = p.weight || !p.transpose_b ? p.n : p.k;
    b_ref_ = b_.random(p.weight ? p.rows : p.experts * p.n * p.k / b_cols, b_cols, 2);
    c_ref_ = c_.random(p.weight ? p.experts * p.k : p.rows, p.n, 3);
    offset_.put(offsets(p.rows, p.experts));
    std::vector<int32_t> src(p.rows);
    for (int64_t r = 0; r < p.rows; ++r) src[r] = static_cast<int32_t>(r * 7919 % p.rows / 8);
    src_.put(src);
  }

  void run(GemmTile tile) const {
    const auto* offset = static_cast<const int32_t*>(offset_.data());
    const auto* src = static_cast<const int32_t*>(src_.data());
    if (product_.weight) {
      return grouped_gemm_weight_cuda({.a = a_ref_.read(),
                                       .b = b_ref_.read(),
                                       .c = c_ref_,
                                       .experts = product_.experts,
                                       .expert_offset = offset,
                                       .tile = tile},
                                      nullptr);
    }
    grouped_gemm_cuda({.a = a_ref_.read(),
                       .b = b_ref_.read(),
                       .c = c_ref_,
                       .experts = product_.experts,
                       .expert_offset = offset,
                       .row_src = product_.gather ? src : nullptr,
                       .transpose_b = product_.transpose_b,
                       .tile = tile},
                      nullptr);
  }

 private:
  Product product_;
  Memory a_, b_, c_, offset_, src_;
  MutRef a_ref_, b_ref_, c_ref_;
};

struct Timed {
  GemmTile tile;
  std::vector<float> times = {};

  double ms() const {
    std::vector<float> sorted = times;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }
};

class Clock {
 public:
  Clock() : flush_(kFlushBytes) {
    TROUPE_CUDA_CHECK(cudaEventCreate(&start_));
    TROUPE_CUDA_CHECK(cudaEventCreate(&end_));
  }
  ~Clock() {
    (void)cudaEventDestroy(start_);
    (void)cudaEventDestroy(end_);
  }
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;

  float ms(const Operands& operands, GemmTile tile) const {
    TROUPE_CUDA_CHECK(cudaMemsetAsync(flush_.data(), 0, kFlushBytes));
    TROUPE_CUDA_CHECK(cudaEventRecord(start_));
    operands.run(tile);
    TROUPE_CUDA_CHECK(cudaEventRecord(end_));
    TROUPE_CUDA_CHECK(cudaEventSynchronize(end_));
    float ms = 0;
    TROUPE_CUDA_CHECK(cudaEventElapsedTime(&ms, start_, end_));
    return ms;
  }

 private:
  Memory flush_;
  cudaEvent_t start_ = nullptr, end_ = nullptr;
};

struct Result {
  Product product;
  GemmTile chosen;
  std::vector<Timed> tiles;

  double ms(GemmTile tile) const {
    const auto found = std::ranges::find(tiles, tile, &Timed::tile);
    TROUPE_CHECK(found != tiles.end(), "no time of a tile of", tile.n, "columns,", tile.stages,
                 "stages");
    return found->ms();
  }
  const Timed& best() const {
    return *std::ranges::min_element(tiles, {}, [](const Timed& t) { return t.ms(); });
  }
  double ratio(GemmTile tile) const { return best().ms() / ms(tile); }
};

void measure(Result& result, const Operands& operands, const Clock& clock, int rounds) {
  for (int i = 0; i < rounds; ++i) {
    for (Timed& t : result.tiles) t.times.push_back(clock.ms(operands, t.tile));
  }
}

Result sweep(const Product& p, const DeviceLimits& device, const Clock& clock, const Options& o) {
  const GemmPlan plan = choose_plan(p.problem(), device);
  Result result{.product = p, .chosen = {plan.tile_n, plan.stages}, .tiles = {}};
  for (const GemmTile tile : built_tiles(p.problem())) result.tiles.push_back({.tile = tile});
  const Operands operands(p);
  double slowest = 0;
  for (const Timed& t : result.tiles) {
    clock.ms(operands, t.tile);
    slowest = std::max<double>(slowest, clock.ms(operands, t.tile));
  }
  int rounds = o.rounds > 0 ? o.rounds : std::clamp(static_cast<int>(kMsOfATile / slowest), 7, 41);
  measure(result, operands, clock, rounds);
  for (int i = 1; i < kTries && result.ratio(result.chosen) < o.within; ++i) {
    rounds *= 2;
    measure(result, operands, clock, rounds);
  }
  return result;
}

std::string text(GemmTile t) {
  return std::to_string(t.n) + "/" + std::to_string(t.stages);
}

void show(const Result& r, const Options& options) {
  std::printf("%-22s", r.product.name.c_str());
  for (const Timed& t : r.tiles) std::printf("  %5s %8.4f ms", text(t.tile).c_str(), t.ms());
  const double ratio = r.ratio(r.chosen);
  std::printf("  chosen %s best %s (%.0f TFLOP/s) ratio %.3f%s\n", text(r.chosen).c_str(),
              text(r.best().tile).c_str(), r.product.flops() / r.best().ms() / 1e9, ratio,
              ratio < options.within ? "  BELOW" : "");
  std::fflush(stdout);
}

// Of a tile beside 128 columns in four stages: the median over results that no tile pads and that
// fill the GPU four times. 0: there is none.
int rate(const std::vector<Result>& results, bool weight, GemmTile tile, int processors) {
  std::vector<double> rates;
  for (const Result& r : results) {
    const Product& p = r.product;
    const int64_t m_tiles = weight ? p.experts * ceil_div(p.k, 128) : p.rows / 128;
    if (p.weight != weight || p.n % 256 != 0 || m_tiles * (p.n / 256) < 4 * processors) continue;
    rates.push_back(100 * r.ms({128, 4}) / r.ms(tile));
  }
  if (rates.empty()) return 0;
  std::sort(rates.begin(), rates.end());
  return static_cast<int>(rates[rates.size() / 2] + 0.5);
}

// The faster stages of each width, the widest first. Rates are those of the width, as computed from
// the times; blocks those that the plan's registers and the GPU's shared memory hold.
void fill_speeds(TileSpeed (&speeds)[3], bool weight, const std::vector<Result>& results,
                 const DeviceLimits& device) {
  int count = 0;
  GemmProblem p{.dtype = Dtype::kBF16,
                .experts = 1,
                .rows = 1 << 20,
                .rows_are_routed = !weight,
                .cols = 1 << 12,
                .aligned = true};
  for (const GemmTile tile : built_tiles(p)) {
    p.tile = tile;
    const int64_t blocks = choose_plan(p, device).blocks / device.processors;
    const TileSpeed speed{tile.n, tile.stages, static_cast<int>(blocks),
                          rate(results, weight, tile, device.processors)};
    const bool same_width = count > 0 && speeds[count - 1].n == tile.n;
    if (!same_width) {
      speeds[count++] = speed;
    } else if (speed.rate > speeds[count - 1].rate) {
      speeds[count - 1] = speed;
    }
  }
}

double least_ratio(const GemmEntry& entry, const std::vector<Result>& results,
                   const DeviceLimits& device) {
  double least = 1;
  for (const Result& r : results) {
    least = std::min(least, r.ratio(choose_tile(entry, r.product.problem(), device).tile()));
  }
  return least;
}

std::string text(const TileSpeed (&speeds)[3]) {
  std::string out;
  for (const TileSpeed& t : speeds) {
    if (t.n == 0) continue;
    out += (out.empty() ? "" : ", ") + ("{" + std::to_string(t.n)) + ", " +
           std::to_string(t.stages) + ", " + std::to_string(t.blocks) + ", " +
           std::to_string(t.rate) + "}";
  }
  return "{" + out + "}";
}

void print_entry(const std::vector<Result>& results, const DeviceLimits& device, const char* gpu) {
  GemmEntry entry{
      .capability = device.capability, .gpus = gpu, .measured = true, .rows = {}, .weight = {}};
  fill_speeds(entry.rows, false, results, device);
  fill_speeds(entry.weight, true, results, device);
  if (entry.rows[0].rate == 0 || entry.weight[0].rate == 0) {
    std::printf("no entry: no large product of each kind was timed\n");
    return;
  }
  std::printf(
      "least ratio of the entry in use (%d, %s) %.3f; of these times' own %.3f. For "
      "gemm_table.cpp:\n"
      "    {.capability = %d,\n     .gpus = \"%s\",\n     .measured = true,\n"
      "     .rows = %s,\n     .weight = %s},\n",
      gemm_entry(device.capability).capability,
      gemm_entry(device.capability).measured ? "measured" : "computed",
      least_ratio(gemm_entry(device.capability), results, device),
      least_ratio(entry, results, device), entry.capability, gpu, text(entry.rows).c_str(),
      text(entry.weight).c_str());
}

int run(const Options& options) {
  cudaDeviceProp properties{};
  int id = 0;
  TROUPE_CUDA_CHECK(cudaGetDevice(&id));
  TROUPE_CUDA_CHECK(cudaGetDeviceProperties(&properties, id));
  const DeviceLimits device = grouped::current_device();
  std::printf("%s, sm_%d, %d multiprocessors, entry %d\n", properties.name, device.capability,
              device.processors, gemm_entry(device.capability).capability);
  const Clock clock;
  std::vector<Result> results;
  int below = 0;
  for (const Product& p : products(options)) {
    size_t free = 0, total = 0;
    TROUPE_CUDA_CHECK(cudaMemGetInfo(&free, &total));
    if (p.bytes() > static_cast<int64_t>(free)) {
      std::printf("%-22s  left out, it takes %.1f GB\n", p.name.c_str(),
                  1e-9 * static_cast<double>(p.bytes()));
      continue;
    }
    results.push_back(sweep(p, device, clock, options));
    show(results.back(), options);
    below += results.back().ratio(results.back().chosen) < options.within;
  }
  print_entry(results, device, properties.name);
  std::printf("%d of %zu chosen tiles are below %.2f of the best\n", below, results.size(),
              options.within);
  return options.gate && below > 0 ? 1 : 0;
}

Options read(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--gate") {
      options.gate = true;
      continue;
    }
    TROUPE_CHECK(i + 1 < argc && (word == "--only" || word == "--rounds" || word == "--within"),
                 "gemm_sweep takes --only TEXT, --rounds N, --gate and --within RATIO, not", word);
    const char* value = argv[++i];
    if (word == "--only") options.only = value;
    if (word == "--rounds") options.rounds = std::atoi(value);
    if (word == "--within") options.within = std::atof(value);
  }
  return options;
}

}  // namespace
}  // namespace troupe

int main(int argc, char** argv) {
  try {
    return troupe::run(troupe::read(argc, argv));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gemm_sweep: %s\n", error.what());
    return 2;
  }
}
