// A machine as the planner sees it: what a device computes and moves in a second, and what lies
// between devices. A file of it is YAML (machines/*.yaml) and is written by `troupe bench machine`;
// all rates but `peak` are those that are reached, not those of a data sheet.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace troupe {

// Between two ranks: a collective of n steps that moves b bytes out of each rank takes
// n latency + b / bandwidth.
struct Link {
  double bandwidth = 0;  // bytes a second out of a rank, with as many coming in
  double latency = 0;    // seconds
  static void visit(auto& l, auto&& f) {
    f("bandwidth", l.bandwidth);
    f("latency", l.latency);
  }
};

struct Machine {
  std::string name = {};
  std::string measured = {};  // when and how; empty: assumed
  bool gpu = true;            // what `auto` stands for in run.device and train.precision
  double memory = 0;          // bytes of a device
  double peak = 0;            // FLOP/s of the data sheet, dense bf16: what MFU is of; 0: not known
  double products = 0;        // FLOP/s of large matrix products
  double experts = 0;         // of grouped ones
  double attention = 0;       // of attention's core
  double bandwidth = 0;       // bytes a second of the device's memory, read and written
  double overhead = 0;        // seconds that a pass through one unit takes, however small
  int64_t ranks_per_host = 8;
  Link inside, between;   // ranks of one host, of two
  double contention = 0;  // what runs beside a gather or sum takes 1 + contention times as long
  double summing = 1;     // seconds of a sum that is cut, over those of a gather of as many bytes
  double exchanging = 1;  // the same of an exchange
  double dispatch = 0;    // seconds that a dispatch of hardly any rows takes, there and back
  double jitter = 0;      // deviation of a rank's step, as a part of it
  double derate = 0;      // of `between`, each tenfold number of hosts
  double imbalance = 1;   // load of the busiest expert rank over the mean
  static void visit(auto& m, auto&& f) {
    f("name", m.name);
    f("measured", m.measured);
    f("gpu", m.gpu);
    f("memory", m.memory);
    f("peak", m.peak);
    f("products", m.products);
    f("experts", m.experts);
    f("attention", m.attention);
    f("bandwidth", m.bandwidth);
    f("overhead", m.overhead);
    f("ranks_per_host", m.ranks_per_host);
    f("inside", m.inside);
    f("between", m.between);
    f("contention", m.contention);
    f("summing", m.summing);
    f("exchanging", m.exchanging);
    f("dispatch", m.dispatch);
    f("jitter", m.jitter);
    f("derate", m.derate);
    f("imbalance", m.imbalance);
  }
};

// Names every field that is missing or makes no sense.
Machine load_machine(const std::string& path);

// Where no file is given: hosts of eight H100, as in machines/assumed-h100.yaml, or processes that
// share a host's cores. Round figures, for the choice between layouts alone.
Machine assumed_machine(bool gpu);

// Rates that are under `part` of what they should be, a line each: of each rank beside the median
// of the ranks, where there are three or more, and beside `expected` where it is given.
std::vector<std::string> slow_parts(const std::vector<Machine>& ranks, const Machine* expected,
                                    double part = 0.8);

// Of n holders of experts, those that a token's K choices are expected to meet.
double expected_holders(double n, double K);

// How a group of ranks lies on hosts.
struct Spread {
  int64_t ranks = 1;
  int64_t hosts = 1;  // among them
};

// Seconds of one collective over a group, by rings: W ranks, `whole` bytes on each rank once it is
// gathered or before it is summed and cut.
//   gather, sum and cut   (W - 1) latency + whole (W - 1) / W / bandwidth
//   sum on all            twice that
//   exchange              latency + exchanging x bytes that leave a rank / bandwidth, both links at
//                         once: of M hosts' W ranks W - W/M of the W - 1 others are on another host
// A ring that crosses hosts has the pace of `between`.
double gather_seconds(const Machine& machine, const Spread& group, double whole);
double exchange_seconds(const Machine& machine, const Spread& group, double out);

}  // namespace troupe
