#include "troupe/distributed/mesh/process_mesh.h"

#include <algorithm>
#include <functional>
#include <iomanip>
#include <set>
#include <sstream>

#include "troupe/core/check.h"

namespace troupe {
namespace {

// "4 or 8": the divisors of n around `wanted` that will do. There is one: n or 1 always does.
std::string near(int64_t n, int64_t wanted) {
  return near_divisors(n, wanted, [](int64_t) { return true; });
}

struct Size {
  std::string name;
  int64_t value;
};

class MeshCheck {
 public:
  MeshCheck(int64_t world, const MeshShape& shape) : world_(world), shape_(shape) {}

  std::vector<std::string> run() {
    check_positive();
    if (!faults_.empty()) return faults_;
    if (world_ % shape_.pipeline != 0) {
      add("pipeline", shape_.pipeline, "stages do not divide", world_, "ranks; use",
          near(world_, shape_.pipeline));
    }
    const int64_t stage = faults_.empty() ? world_ / shape_.pipeline : world_;
    check_pair(stage, {"tensor", shape_.tensor}, {"context", shape_.context});
    check_pair(stage, {"expert_tensor", shape_.expert_tensor}, {"expert", shape_.expert});
    if (!faults_.empty()) return faults_;  // what follows counts the ranks of whole groups
    check_order();
    check_shard(stage / shape_.tensor);
    return faults_;
  }

 private:
  template <class... Args>
  void add(const std::string& field, const Args&... what) {
    faults_.push_back(detail::fault_text("parallel." + field, Code::kBadValue, what...));
  }

  void check_positive() {
    if (world_ < 1) {
      faults_.push_back(
          detail::fault_text("parallel", Code::kBadValue, "a mesh of", world_, "ranks"));
    }
    MeshShape::visit(shape_, [&](const std::string& name, const auto& value) {
      if constexpr (std::is_same_v<decltype(value), const int64_t&>) {
        const int64_t least = name == "shard_ranks" ? 0 : 1;
        if (value < least) add(name, value, "is less than", least);
      }
    });
  }

  // Both sizes, and their product, divide the ranks of a stage.
  void check_pair(int64_t stage, const Size& inner, const Size& outer) {
    const size_t before = faults_.size();
    for (const Size& size : {inner, outer}) {
      if (stage % size.value != 0) {
        add(size.name, size.value, "does not divide the", stage, "ranks of a stage; use",
            near(stage, size.value));
      }
    }
    if (faults_.size() > before || stage % (inner.value * outer.value) == 0) return;
    const bool slices = inner.name == "expert_tensor" && stage % outer.value == 0;
    add(outer.name, inner.name, inner.value, "times", outer.name, outer.value,
        "does not divide the", stage, "ranks of a stage; with", inner.name, inner.value, "use",
        outer.name,
        near(stage / inner.value, outer.value) + (slices ? ", or expert_tensor 1" : ""));
  }

  void check_order() {
    const int64_t dense = shape_.tensor * shape_.context;
    const int64_t experts = shape_.expert_tensor * shape_.expert;
    if (shape_.order == MeshOrder::kDataInStage || shape_.pipeline == 1 || dense == experts) return;
    const std::string other = to_text(MeshOrder::kDataInStage);
    const std::string expert = dense % shape_.expert_tensor == 0
                                   ? ", or expert " + std::to_string(dense / shape_.expert_tensor)
                                   : "";
    add("order", to_text(shape_.order), "with", shape_.pipeline,
        "stages: tensor x context =", dense, "and expert_tensor x expert =", experts,
        "differ, so that attention and experts would not share the stages; use", other + expert);
  }

  // `data` ranks hold the same dense parameters.
  void check_shard(int64_t data) {
    if (shape_.shard == 0) return;
    const int64_t experts = shape_.expert_tensor * shape_.expert;
    const auto cuts_experts_evenly = [&](int64_t shard) {
      const int64_t block = shape_.tensor * shard;
      return block <= experts || block % experts == 0;
    };
    if (data % shape_.shard != 0) {
      add("shard_ranks", shape_.shard, "does not divide the", data,
          "ranks that hold the same dense parameters; use",
          near_divisors(data, shape_.shard, cuts_experts_evenly));
    } else if (!cuts_experts_evenly(shape_.shard)) {
      add("shard_ranks", shape_.shard, "times tensor", shape_.tensor,
          "ranks cut unequal parts of the expert-data groups, which take every rank in", experts,
          "(expert_tensor x expert); use", near_divisors(data, shape_.shard, cuts_experts_evenly));
    }
  }

  const int64_t world_;
  const MeshShape& shape_;
  std::vector<std::string> faults_;
};

// "0 1 2 .. 63": the first and the last of many.
template <class T, class Print>
void print_some(std::ostream& os, const std::vector<T>& all, std::string_view between, Print&& f) {
  constexpr size_t kWhole = 8, kHead = 3;
  const size_t head = all.size() > kWhole ? kHead : all.size();
  for (size_t i = 0; i < head; ++i) f(os << (i == 0 ? "" : between), all[i]);
  if (head < all.size()) f(os << between << ".. ", all.back());
}

}  // namespace

std::string near_divisors(int64_t n, int64_t wanted, const std::function<bool(int64_t)>& does) {
  int64_t below = 0, above = 0;
  for (int64_t d = 1; d <= n && above == 0; ++d) {
    if (n % d == 0 && does(d)) (d < wanted ? below : above) = d;
  }
  if (below == 0 || above == 0) return std::to_string(std::max(below, above));
  return std::to_string(below) + " or " + std::to_string(above);
}

std::vector<std::string> ProcessMesh::faults(int64_t world, const MeshShape& shape) {
  return MeshCheck(world, shape).run();
}

ProcessMesh::ProcessMesh(int64_t world, const MeshShape& shape) : world_(world), shape_(shape) {
  std::string text;
  for (const std::string& fault : faults(world, shape)) text += (text.empty() ? "" : "\n") + fault;
  if (!text.empty()) throw Error(text, Code::kBadValue);
  const int64_t stage = world / shape.pipeline;
  const int64_t experts = shape.expert_tensor * shape.expert;
  data_ = stage / (shape.tensor * shape.context);
  expert_data_ = stage / experts;
  if (shape.shard == 0) shape_.shard = data_ * shape.context;
  expert_shard_ = std::max<int64_t>(1, shape.tensor * shape_.shard / experts);
}

std::vector<ProcessMesh::Axis> ProcessMesh::axes_of(GroupKind kind) const {
  const int64_t dense = shape_.tensor * shape_.context;
  const int64_t experts = shape_.expert_tensor * shape_.expert;
  const bool stage_in_data = shape_.order == MeshOrder::kStageInData;
  const int64_t stages_between = stage_in_data ? shape_.pipeline : 1;
  switch (kind) {
    case GroupKind::kTensor: return {{shape_.tensor, 1}};
    case GroupKind::kContext: return {{shape_.context, shape_.tensor}};
    case GroupKind::kPipeline: return {{shape_.pipeline, stage_in_data ? dense : dense * data_}};
    case GroupKind::kExpert: return {{shape_.expert, shape_.expert_tensor}};
    case GroupKind::kExpertTensor: return {{shape_.expert_tensor, 1}};
    case GroupKind::kExperts: return {{experts, 1}};
    case GroupKind::kMicrobatch: return {{dense, 1}};
    case GroupKind::kStage: return {{dense, 1}, {data_, dense * stages_between}};
    case GroupKind::kData:
    case GroupKind::kShard:
    case GroupKind::kReplicate:
      return {{shape_.context, shape_.tensor}, {data_, dense * stages_between}};
    case GroupKind::kExpertData:
    case GroupKind::kExpertShard:
    case GroupKind::kExpertReplicate: return {{expert_data_, experts * stages_between}};
    case GroupKind::kWorld: break;
  }
  return {{world_, 1}};
}

std::vector<int64_t> ProcessMesh::along(GroupKind kind, int64_t rank) const {
  const std::vector<Axis> axes = axes_of(kind);
  int64_t first = rank;
  for (const Axis& axis : axes) first -= axis.coordinate(rank) * axis.stride;
  std::vector<int64_t> out{first};
  for (const Axis& axis : axes) {
    const size_t before = out.size();
    for (int64_t i = 1; i < axis.size; ++i) {
      for (size_t j = 0; j < before; ++j) out.push_back(out[j] + i * axis.stride);
    }
  }
  return out;
}

std::vector<int64_t> ProcessMesh::ranks_of(GroupKind kind, int64_t rank) const {
  TROUPE_CHECK(0 <= rank && rank < world_, "rank", rank, "of", world_);
  std::vector<int64_t> whole = along(kind, rank);
  const auto count = static_cast<int64_t>(whole.size());
  const bool expert = kind == GroupKind::kExpertShard || kind == GroupKind::kExpertReplicate;
  const int64_t block = expert ? expert_shard_ : shape_.shard;
  const auto place = std::lower_bound(whole.begin(), whole.end(), rank) - whole.begin();
  std::vector<int64_t> out;
  switch (kind) {
    case GroupKind::kShard:
    case GroupKind::kExpertShard:
      out.assign(whole.begin() + place / block * block,
                 whole.begin() + (place / block + 1) * block);
      return out;
    case GroupKind::kReplicate:
    case GroupKind::kExpertReplicate:
      for (int64_t i = place % block; i < count; i += block) out.push_back(whole[i]);
      return out;
    default: return whole;
  }
}

// The `repeat` neighbors that `rank` is among, at the data index of each of `ranks`.
std::vector<int64_t> ProcessMesh::times_tensor(const std::vector<int64_t>& ranks, int64_t rank,
                                               int64_t repeat) const {
  TROUPE_CHECK(repeat >= 1 && shape_.tensor % repeat == 0, "repeat", repeat, "of", shape_.tensor,
               "tensor ranks");
  const int64_t place = rank % shape_.tensor, first = place / repeat * repeat;
  std::vector<int64_t> out;
  for (const int64_t r : ranks) {
    for (int64_t i = first; i < first + repeat; ++i) out.push_back(r - place + i);
  }
  return out;
}

std::vector<int64_t> ProcessMesh::sharers_of(int64_t rank, int64_t repeat) const {
  return times_tensor(ranks_of(GroupKind::kData, rank), rank, repeat);
}

std::vector<int64_t> ProcessMesh::owners_of(int64_t rank, int64_t repeat) const {
  return times_tensor(ranks_of(GroupKind::kShard, rank), rank, repeat);
}

int64_t ProcessMesh::data_index(int64_t rank) const {
  const std::vector<int64_t> all = ranks_of(GroupKind::kData, rank);
  return std::lower_bound(all.begin(), all.end(), rank) - all.begin();
}

int64_t ProcessMesh::pipeline_index(int64_t rank) const {
  return axes_of(GroupKind::kPipeline).front().coordinate(rank);
}

int64_t ProcessMesh::size(GroupKind kind) const {
  return static_cast<int64_t>(ranks_of(kind, 0).size());
}

std::vector<std::vector<int64_t>> ProcessMesh::all(GroupKind kind) const {
  std::vector<std::vector<int64_t>> out;
  std::vector<bool> seen(static_cast<size_t>(world_), false);
  for (int64_t rank = 0; rank < world_; ++rank) {
    if (seen[rank]) continue;
    out.push_back(ranks_of(kind, rank));
    for (const int64_t member : out.back()) seen[member] = true;
  }
  return out;
}

std::string to_text(const ProcessMesh& mesh) {
  const MeshShape& s = mesh.shape();
  std::ostringstream os;
  os << mesh.world() << " ranks, order " << to_text(s.order) << "\nattention  tensor " << s.tensor
     << " x context " << s.context << " x data " << mesh.data() << " x pipeline " << s.pipeline
     << "\nexperts    expert_tensor " << s.expert_tensor << " x expert " << s.expert
     << " x expert_data " << mesh.expert_data() << " x pipeline " << s.pipeline << '\n';
  const auto print = [&](const std::string& name, const std::vector<std::vector<int64_t>>& groups) {
    os << std::left << std::setw(17) << name << ' ' << groups.size()
       << (groups.size() == 1 ? " group of " : " groups of ") << groups[0].size() << ": ";
    print_some(os, groups, ", ", [](std::ostream& out, const std::vector<int64_t>& group) {
      print_some(out, group, " ", [](std::ostream& o, int64_t rank) { o << rank; });
    });
    os << '\n';
  };
  for (const auto& [name, kind] : names_of(GroupKind{})) print(std::string(name), mesh.all(kind));
  std::set<std::vector<int64_t>> owners;
  for (int64_t rank = 0; rank < mesh.world(); ++rank) owners.insert(mesh.owners_of(rank, s.tensor));
  print("whole_owners", {owners.begin(), owners.end()});
  return os.str();
}

}  // namespace troupe
