// What a run's log.jsonl says: read for the report.
#pragma once

#include <cmath>
#include <map>
#include <string>
#include <vector>

namespace troupe {

// Where a run was resumed at a step, what an earlier start wrote of later steps is dropped. A last
// line without an end is left out; other lines that are no JSON are counted, and those of more than
// 16 MiB.
//
// The time is linear in the log and the memory bounded, whatever it holds: of a list that has
// reached its bound every second entry goes, of events the later ones, which are counted.
struct RunLog {
  struct Evaluation {
    int64_t step;
    std::string set;
    double loss;
    double bits_per_byte = NAN;  // NaN: the run had no tokenizer
  };
  struct Sample {
    int64_t step;
    std::string prompt, text;
  };
  struct Experts {  // the share of each expert: its count over the mean
    int64_t step;
    std::map<int64_t, std::vector<double>> layers;
  };
  struct Event {
    int64_t step;
    std::string text;
    double time = NAN;  // Unix seconds
  };
  // From a start or resume to the last line before the next.
  struct Session {
    double begin = NAN, end = NAN;  // Unix seconds
    int64_t last_step = 0;
    bool ended = false;  // it says so: stopped or finished, not killed
  };
  std::map<std::string, std::map<int64_t, double>> series;  // name -> step -> value; what is shown
  std::vector<Evaluation> evaluations;
  std::vector<std::string> sets;  // of the evaluations
  std::vector<Sample> samples;
  std::vector<Experts> experts;
  std::vector<Event> events;  // with a line for each session that a kill ended
  int64_t more_events = 0;    // that are left out
  std::vector<Session> sessions;
  double params = NAN, active_params = NAN;
  int64_t torn = 0;  // lines that could not be read

  static constexpr size_t kMostPoints = 200'000;  // of a series
  static constexpr size_t kMostEvents = 10'000, kMostEvaluations = 10'000, kMostSets = 64;
  static constexpr size_t kMostSamples = 64, kMostExperts = 512, kMostSessions = 100'000;

  double seconds() const;  // that sessions lasted; NaN: no line has a time
  int64_t kills() const;   // sessions, besides the last, that end without a word
  // The median of a series over the second half of the steps that logged it, past warming up; NaN:
  // none did.
  double usual(const std::string& name) const;
  // From the first evaluated set; NaN: no evaluation knows it.
  double bytes_per_token() const;
};
RunLog read_run_log(const std::string& path);

}  // namespace troupe
