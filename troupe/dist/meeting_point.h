// Where the ranks of a run meet: a server of small texts, in the process that starts them, so that
// it outlives each of them. Ranks reach it with Place::launcher_has_store.
#pragma once

#include <memory>

namespace troupe {

class MeetingPoint {
 public:
  explicit MeetingPoint(int port = 0);  // 0: any that is free. E6002 where it cannot be had
  ~MeetingPoint();
  int port() const;

 private:
  struct Server;
  std::unique_ptr<Server> server_;
};

}  // namespace troupe
