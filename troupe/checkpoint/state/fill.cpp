#include "troupe/checkpoint/state/fill.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <numeric>
#include <string_view>
#include <thread>
#include <utility>

#include "troupe/checkpoint/state/tensor_element.h"
#include "troupe/core/check.h"

namespace troupe {
namespace {

using Jobs = std::vector<std::function<void()>>;

// On several threads; throws what was thrown first.
void run_all(const Jobs& jobs, int threads) {
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  std::exception_ptr first;
  const auto work = [&] {
    for (size_t i; (i = next++) < jobs.size();) {
      try {
        jobs[i]();
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
        next = jobs.size();
      }
    }
  };
  {
    std::vector<std::jthread> others;
    for (int i = 1; i < std::min<int>(threads, static_cast<int>(jobs.size())); ++i) {
      others.emplace_back(work);
    }
    work();
  }
  if (first) std::rethrow_exception(first);
}

// Copies `part` of row-major `from_box` into row-major `to_box`.
void copy_box(const Box& from_box, std::span<const std::byte> from, const Box& to_box,
              std::span<std::byte> to, const Box& part, int64_t bytes) {
  for_each_run(from_box, to_box, part, [&](int64_t a, int64_t b, int64_t count) {
    std::memcpy(to.data() + b * bytes, from.data() + a * bytes, static_cast<size_t>(count * bytes));
  });
}

}  // namespace

Filling::Filling(const CheckpointReader& reader, const LoadOptions& options,
                 const CheckpointGroup& group, const Faults& faults)
    : reader_(reader), options_(options), group_(group), faults_(faults) {
  for (const auto& [name, tensor] : reader_.tensors()) {
    sources_.push_back({&name, &tensor, std::vector<char>(tensor.slices.size())});
    StoredBoxes& stored = stored_.emplace_back();
    stored.bytes = bits_of(tensor.element) / 8;
    for (const auto& slice : tensor.slices) stored.slices.push_back(slice.box);
  }
}

void Filling::run(const std::vector<const Part*>& parts) {
  std::map<std::string_view, size_t> numbers;
  for (size_t i = 0; i < sources_.size(); ++i) numbers.emplace(*sources_[i].name, i);
  std::vector<Want> mine;
  for (const Part* const part : parts) {
    const size_t tensor = numbers.at(part->tensor.name);
    targets_.push_back({.part = part, .tensor = tensor});
    mine.push_back({tensor, part->tensor.box});
  }
  std::vector<std::vector<Want>> wants;
  for (const std::string& text : run_on_all(group_, [&] { return to_text(mine); })) {
    wants.push_back(wants_from(text, stored_));
  }
  const std::vector<Round> rounds = plan_reads(stored_, wants, options_.buffer_bytes);
  for (const Round& round : rounds) {
    for (const SharedSlice& shared : round) {
      sources_[shared.tensor].shared[shared.slice] = 1;
      for (const auto& cut : shared.cuts) {
        if (cut.rank == group_.rank) ++targets_[cut.want].missing;
      }
    }
  }
  run_on_all(group_, [&] {
    Jobs jobs;
    for (Target& target : targets_) {
      if (target.missing > 0) continue;
      jobs.emplace_back([this, &target] { begin(target), finish(target); });
    }
    run_all(jobs, options_.threads);
    return std::string();
  });
  for (const Round& round : rounds) {
    std::vector<std::vector<std::byte>> slices(round.size());
    run_on_all(group_, [&] {
      read_round(round, slices);
      return std::string();
    });
    send_round(round, slices);
  }
  std::ranges::sort(unsound_);
}

int64_t Filling::read(const Source& source, size_t slice, const Box& box,
                      std::span<std::byte> out) {
  const auto& stored = *source.tensor;
  return reader_.read_slice(stored, *source.name, stored.slices[slice], box, out, faults_);
}

void Filling::begin(Target& target) {
  const TensorBox& t = target.part->tensor;
  const Source& source = sources_[target.tensor];
  const Element element = source.tensor->element;
  const bool direct =
      target.part->value.is_cpu() && element == t.element && target.part->in_place();
  target.host = direct ? target.part->value
                       : at::empty({t.box.numel()}, at::TensorOptions(scalar_of(element)));
  for (size_t i = 0; i < source.shared.size(); ++i) {
    Box part;
    if (source.shared[i] || !overlap(source.tensor->slices[i].box, t.box, part)) continue;
    bytes_ += read(source, i, t.box, bytes_of(target.host));
  }
}

void Filling::finish(Target& target) {
  const at::Tensor host = std::exchange(target.host, at::Tensor());
  if (!host.is_same(target.part->value)) target.part->fill(host);
  const int64_t count = count_unsound(sources_[target.tensor].tensor->element, bytes_of(host));
  if (count == 0) return;
  const std::lock_guard lock(mutex_);
  unsound_.push_back(target.part->tensor.name + ": " + std::to_string(count) +
                     " numbers are NaN or infinite");
}

// This rank's slices, whole; and the beginning of parts that the round is the first to touch.
void Filling::read_round(const Round& round, std::vector<std::vector<std::byte>>& slices) {
  Jobs jobs;
  std::vector<char> begun(targets_.size());
  for (size_t i = 0; i < round.size(); ++i) {
    const SharedSlice& shared = round[i];
    for (const auto& cut : shared.cuts) {
      if (cut.rank != group_.rank || std::exchange(begun[cut.want], 1) != 0) continue;
      Target& target = targets_[cut.want];
      if (!target.host.defined()) jobs.emplace_back([this, &target] { begin(target); });
    }
    if (shared.reader != group_.rank) continue;
    jobs.emplace_back([this, &shared, &out = slices[i]] {
      const StoredBoxes& stored = stored_[shared.tensor];
      const Box& box = stored.slices[shared.slice];
      out.resize(static_cast<size_t>(box.numel() * stored.bytes));
      bytes_ += read(sources_[shared.tensor], shared.slice, box, out);
    });
  }
  run_all(jobs, options_.threads);
}

void Filling::send_round(const Round& round, std::vector<std::vector<std::byte>>& slices) {
  const auto ranks = static_cast<size_t>(group_.size);
  std::vector<int64_t> to(ranks), from(ranks);
  // f(i, cut) in the order in which both sides have what one rank reads and another gets.
  const auto for_each = [&](int reader, int getter, auto&& f) {
    for (size_t i = 0; i < round.size(); ++i) {
      if (round[i].reader != reader) continue;
      for (const auto& cut : round[i].cuts) {
        if (cut.rank == getter) f(i, cut);
      }
    }
  };
  std::vector<std::byte> out;
  for (int rank = 0; rank < group_.size; ++rank) {
    for_each(group_.rank, rank, [&](size_t i, const SharedSlice::Cut& cut) {
      const StoredBoxes& stored = stored_[round[i].tensor];
      const int64_t bytes = cut.box.numel() * stored.bytes;
      out.resize(out.size() + static_cast<size_t>(bytes));
      copy_box(stored.slices[round[i].slice], slices[i], cut.box,
               std::span(out).last(static_cast<size_t>(bytes)), cut.box, stored.bytes);
      to[static_cast<size_t>(rank)] += bytes;
    });
    for_each(rank, group_.rank, [&](size_t i, const SharedSlice::Cut& cut) {
      from[static_cast<size_t>(rank)] += cut.box.numel() * stored_[round[i].tensor].bytes;
    });
  }
  slices.clear();
  std::vector<std::byte> in(
      static_cast<size_t>(std::accumulate(from.begin(), from.end(), int64_t{0})));
  group_.all_to_all({.out = out, .to = to, .in = in, .from = from});
  size_t at = 0;
  for (int rank = 0; rank < group_.size; ++rank) {
    for_each(rank, group_.rank, [&](size_t i, const SharedSlice::Cut& cut) {
      const int64_t bytes = stored_[round[i].tensor].bytes;
      const auto size = static_cast<size_t>(cut.box.numel() * bytes);
      Target& target = targets_[cut.want];
      copy_box(cut.box, std::span(in).subspan(at, size), target.part->tensor.box,
               bytes_of(target.host), cut.box, bytes);
      at += size;
      if (--target.missing == 0) finish(target);
    });
  }
}

}  // namespace troupe
