// Reads TensorBoard event files, ours and others', with every checksum compared: what `inspect`
// shows of one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace troupe {

struct EventTag {
  std::string tag;
  std::string kind;  // "scalar", "histogram", "text" or "other"
  int64_t points = 0;
  int64_t first_step = 0, last_step = 0;
  double last = 0;  // the value of a scalar's last point
  static void visit(auto& t, auto&& f) {
    f("tag", t.tag);
    f("kind", t.kind);
    f("points", t.points);
    f("first_step", t.first_step);
    f("last_step", t.last_step);
    f("last", t.last);
  }
};

struct EventsSummary {
  std::string path;
  std::string version = "";          // "brain.Event:2"
  int64_t bytes = 0, events = 0;     // whole ones
  std::vector<int64_t> starts = {};  // steps at which a session says that it begins
  std::vector<EventTag> tags = {};   // by name
  std::string torn = "";  // where and how the file ends in the middle; empty: it does not
  static void visit(auto& s, auto&& f) {
    f("path", s.path);
    f("version", s.version);
    f("bytes", s.bytes);
    f("events", s.events);
    f("starts", s.starts);
    f("tags", s.tags);
    f("torn", s.torn);
  }
};

// A last record that is not whole sets `torn`: a run that was killed leaves one. A checksum
// that does not fit, a record that is no event, and a file without a single one are E3001.
// Holds one event of at most 256 MiB at a time.
EventsSummary read_events(const std::string& path);

}  // namespace troupe
