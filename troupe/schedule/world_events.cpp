#include "troupe/schedule/world_events.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "troupe/core/check.h"
#include "troupe/schedule/text.h"
#include "troupe/schedule/unit_value.h"

namespace troupe {
namespace {

Name name_of(const UnitValue& v) {
  return {v.gradient ? Thing::kInputGradient : Thing::kOutput, v.unit, v.microbatch};
}

// Parameters whose gradients go the same way.
struct BucketRoles {
  GroupRole shard, replicas;
};

// What all ranks share while their lists are expanded.
struct Expansion {
  const StepWork& work;
  const StepWorld& world;
  std::vector<int> owner, stage;  // of each chunk: its name for parameters, its list
  std::vector<bool> several;      // by owner: a table of several stages
  std::map<WorldEvents::Link, int> links = {};

  int link(int from, int to, bool gradients) {
    return links.try_emplace({from, to, gradients}, static_cast<int>(links.size())).first->second;
  }
};

class RankEvents {
 public:
  RankEvents(Expansion& all, int rank, const std::vector<Action>& list)
      : all_(all),
        place_(all.world.ranks.at(static_cast<size_t>(rank))),
        rows_(all.world.rows.at(static_cast<size_t>(place_.data))),
        rank_(rank),
        list_(list) {
    bool updated = false;
    for (const Action& a : list_) {
      updated |= a.kind == Kind::kUpdate && (a.chunk < 0 || !all.work.updates_in_backward);
      if (a.kind == Kind::kGather) gathered_.insert(a.chunk);
      if (a.kind == Kind::kGather && updated) resident_.insert(a.chunk);
      if (a.microbatch >= 0) microbatches_ = std::max(microbatches_, a.microbatch + 1);
    }
    for (int c = 0; c < all.work.chunks; ++c) {
      if (all.stage[static_cast<size_t>(c)] == place_.list) own_.push_back(c);
    }
  }

  std::vector<Event> events() && {
    for (const int o : resident_) add({.kind = Event::kMake, .what = {Thing::kParams, o}});
    for (const Action& a : list_) {
      action(a);
      ++position_;
    }
    position_ = -1;
    if (all_.work.training) meet(GroupRole::kStage, {Thing::kStepEnd}, 1);
    for (const int o : resident_) add({.kind = Event::kDrop, .what = {Thing::kParams, o}});
    return std::move(out_);
  }

 private:
  using Cell = std::pair<int, int>;
  struct Reduction {
    int owner;
    BucketRoles bucket;
    bool last, summed;
  };

  void add(Event event) {
    event.position = position_;
    out_.push_back(event);
  }
  void make(const Name& what) { add({.kind = Event::kMake, .what = what}); }
  void drop(const Name& what) {
    add({.kind = Event::kRead, .what = what});
    add({.kind = Event::kDrop, .what = what});
  }
  bool is_alone(GroupRole role) const { return place_.of(role) < 0; }
  void meet(GroupRole role, const Name& what, int64_t size) {
    if (is_alone(role)) return;
    add({.kind = Event::kMeet, .what = what, .where = place_.of(role), .size = size});
  }
  const StepWorld::Unit& unit(int chunk) const {
    return all_.world.units.at(static_cast<size_t>(chunk));
  }
  int64_t rows(int chunk, int microbatch) const {
    return rows_.at(static_cast<size_t>(microbatch)) * unit(chunk).states;
  }
  bool has(int chunk) const { return all_.stage.at(static_cast<size_t>(chunk)) == place_.list; }
  int owner(int chunk) const { return all_.owner.at(static_cast<size_t>(chunk)); }

  void check_range(const Action& a) const {
    const bool of_cell = a.kind != Kind::kGather && a.kind != Kind::kFree &&
                         a.kind != Kind::kReduce && a.kind != Kind::kUpdate &&
                         a.kind != Kind::kSnapshot;
    const bool of_chunk = a.kind != Kind::kUpdate && a.kind != Kind::kSnapshot;
    const bool moves = a.kind == Kind::kSend || a.kind == Kind::kRecv;
    TROUPE_CHECK((of_chunk ? 0 : -1) <= a.chunk && a.chunk < all_.work.chunks, "chunk", a.chunk,
                 "of", all_.work.chunks, "in", to_text(a));
    TROUPE_CHECK((of_cell ? 0 : -1) <= a.microbatch && a.microbatch < std::ssize(rows_),
                 "microbatch", a.microbatch, "of", rows_.size(), "in", to_text(a));
    TROUPE_CHECK(!moves || (0 <= a.peer && a.peer < std::ssize(place_.pipeline)), "peer", a.peer,
                 "of", place_.pipeline.size(), "in", to_text(a));
  }

  void action(const Action& a) {
    check_range(a);
    switch (a.kind) {
      case Kind::kGather: return gather(a.chunk);
      case Kind::kFree: return drop({Thing::kParams, a.chunk});
      case Kind::kForwardLight:
      case Kind::kForward: return forward(a);
      case Kind::kBackward:
      case Kind::kBackwardInput: return backward(a);
      case Kind::kBackwardWeight: return weight(a);
      case Kind::kSend: return send(a);
      case Kind::kRecv: return receive(a);
      case Kind::kReduce: return reduce(a);
      case Kind::kUpdate: return update(a.chunk);
      case Kind::kSnapshot: return;
    }
  }

  // Of the parameters that go by an owner's name on this rank.
  std::vector<BucketRoles> buckets(int owner) const {
    std::vector<BucketRoles> out;
    if (all_.several.at(static_cast<size_t>(owner))) {
      out.push_back({GroupRole::kWholeShard, GroupRole::kWholeTableReplicas});
      out.push_back({GroupRole::kCutShard, GroupRole::kCutTableReplicas});
    }
    bool experts = false, cut = false;
    for (const int c : own_) {
      if (all_.owner[static_cast<size_t>(c)] != owner) continue;
      experts |= unit(c).has_experts;
      cut |= unit(c).cut;
    }
    out.push_back({GroupRole::kWholeShard, GroupRole::kWholeReplicas});
    if (cut) out.push_back({GroupRole::kCutShard, GroupRole::kCutReplicas});
    if (experts) out.push_back({GroupRole::kExpertShard, GroupRole::kExpertReplicas});
    return out;
  }
  bool is_shared(const BucketRoles& b) const { return !is_alone(b.shard) || !is_alone(b.replicas); }
  int64_t shared_buckets(int owner) const {
    int64_t out = 0;
    for (const BucketRoles& b : buckets(owner)) out += is_shared(b) ? 1 : 0;
    return out;
  }

  void gather(int chunk) {
    for (const BucketRoles& b : buckets(chunk)) meet(b.shard, {Thing::kParams, chunk}, 1);
    make({Thing::kParams, chunk});
  }

  void need(int chunk) {
    if (gathered_.contains(owner(chunk))) {
      add({.kind = Event::kRead, .what = {Thing::kParams, owner(chunk)}});
    }
  }
  // A value that another rank sends is waited for where it is first used.
  void read(const UnitValue& v) {
    const auto coming = coming_.find(v);
    if (coming != coming_.end()) {
      add(coming->second);
      coming_.erase(coming);
    }
    add({.kind = Event::kRead, .what = name_of(v)});
  }
  void drop_after(const Action& a) {
    for (const UnitValue& v : dropped_by(a, all_.work.training)) {
      if (v.unit < 0 || v.unit >= all_.work.chunks) continue;
      add({.kind = Event::kDrop, .what = name_of(v)});
    }
  }

  void call(const Action& a, const UnitCall& call, Thing pass) {
    const int64_t size = call.size == UnitCall::kFixed ? 1
                         : call.size == UnitCall::kRows
                             ? rows_.at(static_cast<size_t>(a.microbatch))
                             : Event::kAnySize;
    meet(call.role, {pass, a.chunk, a.microbatch}, size);
  }

  void forward(const Action& a) {
    const Cell cell{a.chunk, a.microbatch};
    const bool light = a.kind == Kind::kForwardLight, again = light_.contains(cell);
    need(a.chunk);
    if (a.chunk > 0) read(input_of(a));
    for (const UnitCall& c : unit(a.chunk).calls) call(a, c, Thing::kForwardCall);
    if (light && all_.work.training) {
      light_.insert(cell);
      make({Thing::kLight, a.chunk, a.microbatch});
    } else if (!light) {
      if (again) drop({Thing::kLight, a.chunk, a.microbatch});
      make({Thing::kGraph, a.chunk, a.microbatch});
    }
    if (a.chunk + 1 < all_.work.chunks && (light || !again)) make(name_of(output_of(a)));
    drop_after(a);
  }

  void backward(const Action& a) {
    const bool half = a.kind == Kind::kBackwardInput;
    drop({Thing::kGraph, a.chunk, a.microbatch});
    need(a.chunk);
    if (a.chunk + 1 < all_.work.chunks) read(output_gradient_of(a));
    const std::vector<UnitCall>& calls = unit(a.chunk).calls;
    for (auto c = calls.rbegin(); c != calls.rend(); ++c) {
      if (c->gradient) call(a, *c, Thing::kBackwardCall);
    }
    if (a.chunk > 0) make(name_of(input_gradient_of(a)));
    add_gradient(a, half ? Event::kFirst : Event::kBoth);
    drop_after(a);
    if (half) make({Thing::kLate, a.chunk, a.microbatch});
  }

  void weight(const Action& a) {
    need(a.chunk);
    drop({Thing::kLate, a.chunk, a.microbatch});
    add_gradient(a, Event::kSecond);
  }

  void add_gradient(const Action& a, int64_t part) {
    add({.kind = Event::kAdd,
         .what = {Thing::kSum, a.chunk, a.microbatch},
         .where = owner(a.chunk),
         .size = part});
  }

  int peer(const Action& a) const { return place_.pipeline.at(static_cast<size_t>(a.peer)); }

  void send(const Action& a) {
    const UnitValue v = carried_by(a, has(a.chunk));
    drop(name_of(v));
    const int64_t size = rows(a.chunk, a.microbatch);
    if (size == 0) return;
    const int link = all_.link(rank_, peer(a), v.gradient);
    add({.kind = Event::kSend,
         .what = name_of(v),
         .where = link,
         .size = size,
         .number = sent_[link]++});
  }

  void receive(const Action& a) {
    const UnitValue v = carried_by(a, has(a.chunk));
    make(name_of(v));
    const int64_t size = rows(a.chunk, a.microbatch);
    if (size == 0) return;
    const int link = all_.link(peer(a), rank_, v.gradient);
    Event post{.kind = Event::kPost,
               .what = name_of(v),
               .where = link,
               .size = size,
               .number = posted_[link]++};
    add(post);
    post.kind = Event::kAwait;
    coming_[v] = post;
  }

  // As StepGradients::reduce: what was begun before is waited for first, and then summed over the
  // replicas of the shard where no more of it comes.
  void reduce(const Action& a) {
    finish();
    const bool last = a.microbatch < 0 || a.microbatch + 1 == microbatches_;
    if (shared_buckets(a.chunk) == 0) return;
    add({.kind = Event::kFold, .what = {Thing::kSum, a.chunk, a.microbatch}, .where = a.chunk});
    for (const BucketRoles& b : buckets(a.chunk)) {
      if (!is_shared(b)) continue;
      const bool summed = is_alone(b.shard) && last;
      meet(b.shard, {Thing::kSum, a.chunk, a.microbatch}, 1);
      if (summed) meet(b.replicas, {Thing::kReplicaSum, a.chunk}, 1);
      begun_.push_back({a.chunk, b, last, summed});
    }
  }
  void finish() {
    for (const Reduction& r : std::exchange(begun_, {})) {
      if (!r.last) continue;
      if (!r.summed) meet(r.bucket.replicas, {Thing::kReplicaSum, r.owner}, 1);
      add({.kind = Event::kWhole, .what = {Thing::kSum, r.owner}, .where = r.owner});
    }
  }

  // Of one owner's parameters within backward (train.update in_backward), or, with chunk -1, of all
  // that had none. Each sums over all ranks whether what it adds is finite.
  void update(int chunk) {
    finish();
    const auto is_of_it = [&](int owner) {
      return chunk < 0 ? !updated_.contains(owner) : owner == chunk;
    };
    for (const int c : own_) {
      if (!is_of_it(owner(c))) continue;
      add({.kind = Event::kUse,
           .what = {Thing::kSum, c},
           .where = owner(c),
           .size = shared_buckets(owner(c)),
           .number = microbatches_});
    }
    meet(GroupRole::kWorld, {Thing::kUpdate, chunk}, 1);
    for (const int o : resident_) {
      if (is_of_it(o)) drop({Thing::kParams, o});
    }
    if (chunk >= 0) updated_.insert(chunk);
  }

  Expansion& all_;
  const StepWorld::Rank& place_;
  const std::vector<int64_t>& rows_;
  const int rank_;
  const std::vector<Action>& list_;
  int position_ = 0, microbatches_ = 0;
  std::vector<int> own_;               // chunks
  std::set<int> gathered_, resident_;  // owners; the latter for the next step too
  std::set<int> updated_;              // owners, within backward
  std::set<Cell> light_;
  std::map<UnitValue, Event> coming_;
  std::map<int, int> sent_, posted_;  // by link
  std::vector<Reduction> begun_;
  std::vector<Event> out_;
};

}  // namespace

std::string to_text(const Name& name) {
  std::string out = to_text(name.thing);
  if (name.chunk >= 0) out.append(" of ").append(std::to_string(name.chunk));
  if (name.microbatch >= 0) out.append(".").append(std::to_string(name.microbatch));
  return out;
}

WorldEvents world_events(const std::vector<Schedule>& schedules, const StepWork& work,
                         const StepWorld& world) {
  TROUPE_CHECK(!schedules.empty(), "no schedule");
  TROUPE_CHECK(std::ssize(world.units) == work.chunks, world.units.size(), "units of", work.chunks);
  Expansion all{.work = work,
                .world = world,
                .owner = owners(work),
                .stage = chunk_ranks(work),
                .several = owners_on_several_ranks(work)};
  WorldEvents out{.groups = world.groups, .schedules = schedules};
  for (size_t rank = 0; rank < world.ranks.size(); ++rank) {
    const StepWorld::Rank& place = world.ranks[rank];
    const size_t which = schedules.size() == 1 ? 0 : static_cast<size_t>(place.data);
    out.lists.emplace_back(which, static_cast<size_t>(place.list));
    TROUPE_CHECK(which < schedules.size() && place.list < std::ssize(schedules[which]), "rank",
                 rank, "executes list", place.list, "of schedule", which, "and there is none");
    out.ranks.push_back(RankEvents(all, static_cast<int>(rank), out.list_of(rank)).events());
  }
  out.links.resize(all.links.size());
  for (const auto& [link, index] : all.links) out.links[static_cast<size_t>(index)] = link;
  return out;
}

}  // namespace troupe
