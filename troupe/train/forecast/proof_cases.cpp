#include "troupe/train/forecast/proof_cases.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "troupe/schedule/schedules.h"

namespace troupe {
namespace {

constexpr int kMostMicrobatches = 4;

enum class Share : uint8_t { kNone, kZero1, kFull, kHybrid };
constexpr auto names_of(Share) {
  return std::array{Named{"none", Share::kNone}, Named{"zero1", Share::kZero1},
                    Named{"full", Share::kFull}, Named{"hybrid", Share::kHybrid}};
}
enum class Rows : uint8_t { kEven, kUneven, kFewer };
constexpr auto names_of(Rows) {
  return std::array{Named{"even", Rows::kEven}, Named{"uneven", Rows::kUneven},
                    Named{"fewer", Rows::kFewer}};
}

// What a list depends on.
struct ListShape {
  PipelineOrder order = PipelineOrder::kAuto;
  int ranks = 1, stages_each = 1, microbatches = 1;
  bool recomputes = false, tied = false, beside = false, in_backward = false;
  Share share = Share::kNone;
  int replicas = 1;
  auto key() const {
    return std::tuple{order, ranks,  stages_each, microbatches, recomputes,
                      tied,  beside, in_backward, share,        replicas};
  }
};

// Two layers on one rank, else a layer a stage; the embedding and the head at the ends.
StepWork work_of(const ListShape& s) {
  const int stages = s.ranks * s.stages_each, layers = std::max(2, stages);
  StepWork out{.chunks = layers + 2, .microbatches = s.microbatches, .ranks = s.ranks};
  out.order = s.order;
  out.beside = s.beside;
  out.updates_in_backward = s.in_backward;
  out.replicas = s.replicas;
  if (s.tied) out.tied = {{0, out.chunks - 1}};
  for (int c = 1; s.recomputes && c <= layers; ++c) out.recomputed.push_back(c);
  if (s.ranks == 1) return out;
  for (int c = 0; c < out.chunks; ++c) out.stages.push_back(std::clamp(c - 1, 0, stages - 1));
  for (int stage = 0; stage < stages; ++stage) {
    const int loop = stage % s.ranks, vee = std::min(stage, 2 * s.ranks - 1 - stage);
    out.stage_ranks.push_back(is_in_a_vee(s.order) ? vee : loop);
  }
  return out;
}

// The ordered ways to write n as a product of three.
std::vector<std::array<int, 3>> products(int n) {
  std::vector<std::array<int, 3>> out;
  for (int a = 1; a <= n; ++a) {
    for (int b = 1; n % a == 0 && b <= n / a; ++b) {
      if (n / a % b == 0) out.push_back({a, b, n / a / b});
    }
  }
  return out;
}

struct MeshCase {
  MeshShape shape;
  Share share;
  int data = 1;
};

std::vector<MeshCase> meshes(int ranks) {
  std::vector<MeshCase> out;
  for (int pp = 1; pp <= ranks; ++pp) {
    if (ranks % pp != 0) continue;
    for (const auto& [tp, cp, dp] : products(ranks / pp)) {
      for (const auto& [etp, ep, edp] : products(ranks / pp)) {
        for (const Share share : {Share::kNone, Share::kZero1, Share::kFull, Share::kHybrid}) {
          for (const MeshOrder order : {MeshOrder::kDataInStage, MeshOrder::kStageInData}) {
            if (share == Share::kHybrid && cp * dp % 4 != 0) continue;
            const MeshShape shape{.tensor = tp,
                                  .context = cp,
                                  .pipeline = pp,
                                  .expert = ep,
                                  .expert_tensor = etp,
                                  .shard = share == Share::kNone     ? 1
                                           : share == Share::kHybrid ? cp * dp / 2
                                                                     : 0,
                                  .order = order};
            if (order == MeshOrder::kStageInData && pp == 1) continue;
            if (ProcessMesh::faults(ranks, shape).empty()) out.push_back({shape, share, dp});
          }
        }
      }
    }
  }
  return out;
}

struct OrderCase {
  PipelineOrder order;
  int stages_each;
  bool beside;
  bool in_backward = false;
};

std::vector<OrderCase> orders(int pipeline) {
  if (pipeline == 1) {
    return {{PipelineOrder::kAuto, 1, false},
            {PipelineOrder::kAuto, 1, true},
            {PipelineOrder::kAuto, 1, false, true}};
  }
  return {{PipelineOrder::kGpipe, 1, false},      {PipelineOrder::k1f1b, 1, false},
          {PipelineOrder::k1f1b, 1, true},        {PipelineOrder::kInterleaved, 2, false},
          {PipelineOrder::kInterleaved, 2, true}, {PipelineOrder::kZb1p, 1, false},
          {PipelineOrder::kZbv, 2, false},        {PipelineOrder::kDualPipeV, 2, false}};
}

// Of each data index. A replica with fewer microbatches has ones without rows (RankShare).
std::vector<std::vector<int64_t>> rows_by_replica(Rows rows, int data, int microbatches) {
  std::vector<std::vector<int64_t>> out(static_cast<size_t>(data));
  for (int d = 0; d < data; ++d) {
    for (int m = 0; m < microbatches; ++m) {
      const bool none = rows == Rows::kFewer && m > 0 && m + 1 + d % 2 >= microbatches;
      const int64_t uneven = 1 + (3 * d + 5 * m) % 7;
      out[static_cast<size_t>(d)].push_back(none ? 0 : rows == Rows::kUneven ? uneven : 4);
    }
  }
  return out;
}

class Cases {
 public:
  Cases(int ranks, int64_t each, const std::function<void(ProofCase&)>& f)
      : ranks_(ranks), each_(each), f_(f) {}

  int64_t run() {
    for (const MeshCase& mesh : meshes(ranks_)) {
      const auto pipeline = static_cast<int>(mesh.shape.pipeline);
      for (const OrderCase& order : orders(pipeline)) {
        ListShape list{.order = order.order,
                       .ranks = pipeline,
                       .stages_each = order.stages_each,
                       .beside = order.beside,
                       .in_backward = order.in_backward,
                       .share = mesh.share,
                       .replicas = ranks_ / pipeline};
        for (list.microbatches = 1; list.microbatches <= kMostMicrobatches; ++list.microbatches) {
          for (const bool recomputes : {false, true}) {
            for (const bool tied : {false, true}) {
              list.recomputes = recomputes;
              list.tied = tied;
              for (const Rows rows : {Rows::kEven, Rows::kUneven, Rows::kFewer}) {
                if (list.microbatches == 1 && rows == Rows::kFewer) continue;
                if (count_++ % each_ == 0) one(mesh, list, rows);
              }
            }
          }
        }
      }
    }
    return count_;
  }

 private:
  struct Built {
    StepWork work;
    Schedule schedule;
  };
  const Built& built(const ListShape& list) {
    const auto [at, is_new] = built_.try_emplace(list.key());
    if (!is_new) return at->second;
    Built& out = at->second;
    out.work = work_of(list);
    const StateSharing sharing{.full = list.share == Share::kFull || list.share == Share::kHybrid,
                               .zero1 = list.share == Share::kZero1};
    out.schedule = build_schedule(config_of(sharing, out.work), out.work);
    return out;
  }

  void one(const MeshCase& mesh, const ListShape& list, Rows rows) {
    const Built& b = built(list);
    MeshWorld parts{.whole_state = mesh.share == Share::kNone,
                    .rows = rows_by_replica(rows, mesh.data, list.microbatches)};
    for (int c = 0; c < b.work.chunks; ++c) {
      const bool block = c > 0 && c + 1 < b.work.chunks;
      parts.units.push_back({.attention = block,
                             .experts = block,
                             .sums_over_all = block,
                             .states = block ? 1 + c % 2 : 1});
    }
    ProofCase out{name(mesh, list, rows), b.schedule, b.work, {}};
    out.world = world_of(ProcessMesh(ranks_, mesh.shape), b.work, parts);
    f_(out);
  }

  std::string name(const MeshCase& mesh, const ListShape& list, Rows rows) const {
    const MeshShape& s = mesh.shape;
    std::string out = std::to_string(ranks_) + " ranks: tensor " + std::to_string(s.tensor);
    const auto with = [&](const char* what, int64_t n) {
      out.append(", ").append(what).append(" ").append(std::to_string(n));
    };
    with("context", s.context);
    with("pipeline", s.pipeline);
    with("expert", s.expert);
    with("expert_tensor", s.expert_tensor);
    with("microbatches", list.microbatches);
    out.append(" ").append(to_text(rows)).append(", ").append(to_text(s.order));
    out.append(", ").append(to_text(mesh.share)).append(", ").append(to_text(list.order));
    if (list.beside) out += ", beside";
    if (list.in_backward) out += ", updates in backward";
    if (list.recomputes) out += ", recomputed";
    if (list.tied) out += ", tied";
    return out;
  }

  const int ranks_;
  const int64_t each_;
  const std::function<void(ProofCase&)>& f_;
  int64_t count_ = 0;
  std::map<decltype(ListShape{}.key()), Built> built_;
};

}  // namespace

int64_t for_each_proof_case(int ranks, int64_t each, const std::function<void(ProofCase&)>& f) {
  return Cases(ranks, each, f).run();
}

}  // namespace troupe
