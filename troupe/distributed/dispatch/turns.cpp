#include "troupe/distributed/dispatch/turns.h"

#include <ATen/ThreadLocalState.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <array>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "troupe/core/check.h"
#include "troupe/distributed/dispatch/forwarding_dispatcher.h"

namespace troupe {

struct Turns::State {
  explicit State(const c10::Device& on) : device(on), thread([this] { serve(); }) {}
  ~State() {
    {
      const std::lock_guard lock(mutex);
      ends = true;
    }
    changed.notify_all();
    thread.join();
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  void serve() {
    if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return ends || (runs[1] && turn == 1); });
      if (ends) return;
      if (!thrown) {
        lock.unlock();
        std::exception_ptr own;
        try {
          (*second)();
        } catch (...) {
          own = std::current_exception();
        }
        lock.lock();
        if (!thrown) thrown = own;
      }
      done(1);
    }
  }

  void done(int which) {
    runs[static_cast<size_t>(which)] = false;
    turn = 1 - which;
    changed.notify_all();
  }

  const c10::Device device;
  std::mutex mutex;
  std::condition_variable changed;
  std::array<bool, 2> runs = {};
  int turn = 0;
  bool ends = false;
  std::exception_ptr thrown;  // by the first that threw
  const std::function<void()>* second = nullptr;
  std::thread thread;  // starts when all else is there
};

Turns::Turns(const c10::Device& device) : state_(std::make_unique<State>(device)) {}

Turns::~Turns() = default;

void Turns::both(const std::function<void()>& first, const std::function<void()>& second) {
  State& s = *state_;
  // Modes of gradients, profilers and the like are of a thread.
  const at::ThreadLocalState modes;
  const std::function<void()> in_its_thread = [&] {
    const at::ThreadLocalStateGuard guard(modes);
    second();
  };
  {
    const std::lock_guard lock(s.mutex);
    TROUPE_CHECK(!s.runs[0] && !s.runs[1], "turns are of two computations, and they run");
    s.thrown = nullptr;
    s.second = &in_its_thread;
    s.runs = {true, true};
    s.turn = 0;
  }
  std::exception_ptr own;
  try {
    first();
  } catch (...) {
    own = std::current_exception();
  }
  std::unique_lock lock(s.mutex);
  if (!s.thrown) s.thrown = own;
  s.done(0);
  s.changed.wait(lock, [&] { return !s.runs[1]; });
  s.turn = 0;
  if (s.thrown) std::rethrow_exception(std::exchange(s.thrown, nullptr));
}

void Turns::pass() {
  State& s = *state_;
  std::unique_lock lock(s.mutex);
  if (!s.runs[0] || !s.runs[1]) return;
  const int own = s.turn;
  s.turn = 1 - own;
  s.changed.notify_all();
  s.changed.wait(lock, [&] { return s.turn == own; });
  if (s.thrown) fail(Code::kRankLost, "turns", "what ran beside this one has failed");
}

namespace {

class TurningExchange : public ForwardingExchange {
 public:
  TurningExchange(std::unique_ptr<RowExchange> inner, std::shared_ptr<Turns> turns,
                  std::shared_ptr<Pulse> pulse)
      : ForwardingExchange(std::move(inner)), turns_(std::move(turns)), pulse_(std::move(pulse)) {}

  ExpertRows receive_rows() override {
    pass();
    return ForwardingExchange::receive_rows();
  }
  at::Tensor receive_results() override {
    pass();
    return ForwardingExchange::receive_results();
  }
  at::Tensor receive_grads() override {
    pass();
    return ForwardingExchange::receive_grads();
  }
  DispatchGradients receive_row_grads() override {
    pass();
    return ForwardingExchange::receive_row_grads();
  }

 private:
  // The other computation changes the rank's status while it runs; this one's is set again behind.
  void pass() const {
    const RankStatus own = pulse_->now();
    turns_->pass();
    pulse_->begin(own.phase, own.unit, own.units, own.microbatch);
  }

  const std::shared_ptr<Turns> turns_;
  const std::shared_ptr<Pulse> pulse_;
};

class TurningDispatcher : public ForwardingDispatcher {
 public:
  TurningDispatcher(std::unique_ptr<Dispatcher> inner, std::shared_ptr<Turns> turns,
                    std::shared_ptr<Pulse> pulse)
      : ForwardingDispatcher(std::move(inner)),
        turns_(std::move(turns)),
        pulse_(std::move(pulse)) {}

  std::unique_ptr<RowExchange> send(const at::Tensor& x_TD, const Routed& routed) override {
    return std::make_unique<TurningExchange>(ForwardingDispatcher::send(x_TD, routed), turns_,
                                             pulse_);
  }

 private:
  const std::shared_ptr<Turns> turns_;
  const std::shared_ptr<Pulse> pulse_;
};

}  // namespace

std::unique_ptr<Dispatcher> turning_dispatcher(std::unique_ptr<Dispatcher> inner,
                                               std::shared_ptr<Turns> turns,
                                               std::shared_ptr<Pulse> pulse) {
  return std::make_unique<TurningDispatcher>(std::move(inner), std::move(turns), std::move(pulse));
}

}  // namespace troupe
