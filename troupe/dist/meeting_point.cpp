#include "troupe/dist/meeting_point.h"

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "troupe/core/check.h"

namespace troupe {

struct MeetingPoint::Server {
  c10::intrusive_ptr<c10d::TCPStore> store;
};

MeetingPoint::MeetingPoint(int port) : server_(std::make_unique<Server>()) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(port);
  options.isServer = true;
  options.waitWorkers = false;
  try {
    server_->store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  } catch (const std::exception& e) {
    fail(Code::kNoMeeting, "port " + std::to_string(port), e.what());
  }
}

MeetingPoint::~MeetingPoint() = default;

int MeetingPoint::port() const {
  return server_->store->getPort();
}

}  // namespace troupe
