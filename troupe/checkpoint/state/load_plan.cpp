#include "troupe/checkpoint/state/load_plan.h"

#include <algorithm>
#include <sstream>

#include "troupe/core/check.h"

namespace troupe {
namespace {

// Slices of the tensor that two wants or more have a part of; `reader` is left open.
std::vector<SharedSlice> shared_of(size_t tensor, const StoredBoxes& stored,
                                   const std::vector<SharedSlice::Cut>& wants) {
  std::vector<SharedSlice> out;
  for (size_t s = 0; s < stored.slices.size(); ++s) {
    SharedSlice shared{.tensor = tensor, .slice = s, .reader = 0, .cuts = {}};
    for (const SharedSlice::Cut& want : wants) {
      Box part;
      if (!overlap(stored.slices[s], want.box, part)) continue;
      shared.cuts.push_back({want.rank, want.want, std::move(part)});
    }
    if (shared.cuts.size() > 1) out.push_back(std::move(shared));
  }
  return out;
}

}  // namespace

std::string to_text(const std::vector<Want>& wants) {
  std::string out;
  for (const Want& want : wants) {
    out += std::to_string(want.tensor);
    for (const Sizes& sizes : {want.box.offset, want.box.size}) {
      for (const int64_t x : sizes) out.append(" ").append(std::to_string(x));
    }
    out += '\n';
  }
  return out;
}

std::vector<Want> wants_from(const std::string& text, const std::vector<StoredBoxes>& stored) {
  std::vector<Want> out;
  std::istringstream in(text);
  for (size_t tensor = 0; in >> tensor;) {
    TROUPE_CHECK(tensor < stored.size() && !stored[tensor].slices.empty(), "tensor", tensor, "of",
                 stored.size());
    const Sizes& global = stored[tensor].slices[0].global;
    Box box{global, Sizes(global.size()), Sizes(global.size())};
    for (Sizes* const sizes : {&box.offset, &box.size}) {
      for (int64_t& x : *sizes) TROUPE_CHECK(bool(in >> x), "a want that ends early");
    }
    validate(box);
    out.push_back({tensor, std::move(box)});
  }
  return out;
}

std::vector<std::vector<SharedSlice>> plan_reads(const std::vector<StoredBoxes>& stored,
                                                 const std::vector<std::vector<Want>>& wants,
                                                 int64_t round_bytes) {
  std::vector<std::vector<SharedSlice::Cut>> of_tensor(stored.size());
  for (size_t rank = 0; rank < wants.size(); ++rank) {
    for (size_t i = 0; i < wants[rank].size(); ++i) {
      const Want& want = wants[rank][i];
      of_tensor.at(want.tensor).push_back({static_cast<int>(rank), i, want.box});
    }
  }
  std::vector<std::vector<SharedSlice>> rounds;
  std::vector<int64_t> all_read(wants.size()), round_read(wants.size());
  for (size_t tensor = 0; tensor < stored.size(); ++tensor) {
    for (SharedSlice& shared : shared_of(tensor, stored[tensor], of_tensor[tensor])) {
      const int64_t bytes = stored[tensor].slices[shared.slice].numel() * stored[tensor].bytes;
      const auto least = std::ranges::min_element(shared.cuts, {}, [&](const auto& cut) {
        return all_read[static_cast<size_t>(cut.rank)];
      });
      shared.reader = least->rank;
      const auto reader = static_cast<size_t>(shared.reader);
      const bool full = round_read[reader] > 0 && round_read[reader] + bytes > round_bytes;
      if (rounds.empty() || full) {
        rounds.emplace_back();
        std::ranges::fill(round_read, 0);
      }
      all_read[reader] += bytes;
      round_read[reader] += bytes;
      rounds.back().push_back(std::move(shared));
    }
  }
  return rounds;
}

}  // namespace troupe
