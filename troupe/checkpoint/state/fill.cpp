#include "troupe/checkpoint/state/fill.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <functional>
#include <numeric>
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

Filling::Filling(const ShardFiles& files, const LoadOptions& options, const CheckpointGroup& group,
                 const Faults& faults, const LoadPlan& plan, const std::vector<Part>& parts)
    : files_(files), options_(options), group_(group), faults_(faults), plan_(plan) {
  for (size_t i = 0; i < parts.size(); ++i) {
    targets_.push_back({.part = &parts[i], .plan = &plan.parts[i], .missing = plan.parts[i].cuts});
  }
}

void Filling::run() {
  run_on_all(group_, [&] {
    Jobs jobs;
    for (Target& target : targets_) {
      const bool fits =
          target.plan->stored && target.plan->global == target.part->tensor.box.global;
      if (!fits || target.missing > 0) continue;
      jobs.emplace_back([this, &target] { begin(target), finish(target); });
    }
    run_all(jobs, options_.threads);
    return std::string();
  });
  for (size_t round = 0; round < plan_.reads.size(); ++round) {
    Slices slices(plan_.reads[round].size());
    run_on_all(group_, [&] {
      read_round(round, slices);
      return std::string();
    });
    send_round(round, slices);
  }
  std::ranges::sort(unsound_);
}

TensorBox Filling::stored_box(const Target& target) const {
  return {target.part->tensor.name, target.plan->element, target.part->tensor.box};
}

void Filling::begin(Target& target) {
  const TensorBox wanted = stored_box(target);
  const bool direct = target.part->value.is_cpu() &&
                      wanted.element == target.part->tensor.element && target.part->in_place();
  target.host = direct
                    ? target.part->value
                    : at::empty({wanted.box.numel()}, at::TensorOptions(scalar_of(wanted.element)));
  for (const LoadPlan::Slice& slice : target.plan->alone) {
    bytes_ += files_.read_slice(wanted, slice, bytes_of(target.host), faults_);
  }
}

void Filling::finish(Target& target) {
  const at::Tensor host = std::exchange(target.host, at::Tensor());
  if (!host.is_same(target.part->value)) target.part->fill(host);
  const int64_t count = count_unsound(target.plan->element, bytes_of(host));
  if (count == 0) return;
  const std::lock_guard lock(mutex_);
  unsound_.push_back(target.part->tensor.name + ": " + std::to_string(count) +
                     " numbers are NaN or infinite");
}

// This rank's slices, whole; and the beginning of parts that the round is the first to touch.
void Filling::read_round(size_t round, Slices& slices) {
  Jobs jobs;
  std::vector<char> begun(targets_.size());
  for (const LoadPlan::Sent& sent : plan_.sent[round]) {
    if (std::exchange(begun[sent.want], 1) != 0) continue;
    Target& target = targets_[sent.want];
    if (!target.host.defined()) jobs.emplace_back([this, &target] { begin(target); });
  }
  const std::vector<LoadPlan::Read>& reads = plan_.reads[round];
  for (size_t i = 0; i < reads.size(); ++i) {
    jobs.emplace_back([this, &read = reads[i], &out = slices[i]] {
      TensorBox whole = stored_box(targets_[read.want]);
      whole.box = read.slice.box;
      out.resize(static_cast<size_t>(whole.bytes()));
      bytes_ += files_.read_slice(whole, read.slice, out, faults_);
    });
  }
  run_all(jobs, options_.threads);
}

void Filling::send_round(size_t round, Slices& slices) {
  const auto ranks = static_cast<size_t>(group_.size);
  const std::vector<LoadPlan::Read>& reads = plan_.reads[round];
  const auto bytes_of_element = [&](size_t want) {
    return static_cast<int64_t>(bits_of(plan_.parts[want].element)) / 8;
  };
  // By rank, in the order of the reads, in which offers named them to it.
  std::vector<std::vector<std::pair<size_t, const LoadPlan::Cut*>>> cuts(ranks);
  for (size_t i = 0; i < reads.size(); ++i) {
    for (const LoadPlan::Cut& cut : reads[i].cuts) {
      cuts[static_cast<size_t>(cut.rank)].emplace_back(i, &cut);
    }
  }
  std::vector<int64_t> to(ranks), from(ranks);
  std::vector<std::byte> out;
  for (size_t rank = 0; rank < ranks; ++rank) {
    for (const auto& [i, cut] : cuts[rank]) {
      const int64_t each = bytes_of_element(reads[i].want), bytes = cut->box.numel() * each;
      out.resize(out.size() + static_cast<size_t>(bytes));
      copy_box(reads[i].slice.box, slices[i], cut->box,
               std::span(out).last(static_cast<size_t>(bytes)), cut->box, each);
      to[rank] += bytes;
    }
  }
  slices.clear();
  for (const LoadPlan::Sent& sent : plan_.sent[round]) {
    from[static_cast<size_t>(sent.from)] += sent.box.numel() * bytes_of_element(sent.want);
  }
  std::vector<std::byte> in(
      static_cast<size_t>(std::accumulate(from.begin(), from.end(), int64_t{0})));
  group_.all_to_all({.out = out, .to = to, .in = in, .from = from});
  size_t at = 0;
  for (const LoadPlan::Sent& sent : plan_.sent[round]) {
    const int64_t each = bytes_of_element(sent.want);
    const auto size = static_cast<size_t>(sent.box.numel() * each);
    Target& target = targets_[sent.want];
    copy_box(sent.box, std::span(in).subspan(at, size), target.part->tensor.box,
             bytes_of(target.host), sent.box, each);
    at += size;
    if (--target.missing == 0) finish(target);
  }
}

}  // namespace troupe
