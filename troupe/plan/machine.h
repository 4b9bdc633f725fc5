// The planner's machine model: rates of a device and of the links between devices. Stored as YAML
// (machines/*.yaml), written by `troupe bench machine`. All rates but `peak` are measured, not data
// sheet values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace troupe {

// A link between two ranks: a collective of n steps that sends b bytes per rank takes
// n latency + b / bandwidth.
struct Link {
  double bandwidth = 0;  // bytes/s sent by a rank while it receives as many
  double latency = 0;    // seconds
  static void visit(auto& l, auto&& f) {
    f("bandwidth", l.bandwidth);
    f("latency", l.latency);
  }
};

struct Machine {
  std::string name = {};
  std::string measured = {};  // when and how; empty: assumed
  bool gpu = true;            // what `auto` means in run.device and train.precision
  double memory = 0;          // bytes per device
  double peak = 0;            // data sheet FLOP/s, dense bf16, for MFU; 0: unknown
  double products = 0;        // FLOP/s of large matrix products
  double experts = 0;         // FLOP/s of grouped matrix products
  double attention = 0;       // FLOP/s of the attention core
  double bandwidth = 0;       // memory bandwidth in bytes/s, reads and writes
  double host_link = 0;       // bytes/s between a device and host memory, each way; 0: unknown
  double overhead = 0;        // fixed seconds per pass through a unit
  int64_t ranks_per_host = 8;
  Link inside, between;   // within a host, between hosts
  double contention = 0;  // slowdown of computation during a collective: 1 + contention
  double summing = 1;     // duration of a reduce-scatter relative to an all-gather of equal bytes
  double exchanging = 1;  // duration of an all-to-all relative to the same
  double dispatch = 0;    // seconds of a dispatch and combine with hardly any rows
  double jitter = 0;      // relative standard deviation of a rank's step
  double derate = 0;      // loss of `between` bandwidth per tenfold number of hosts
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
    f("host_link", m.host_link);
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

// Throws one error that names every missing or invalid field.
Machine load_machine(const std::string& path);

// The default without a file: hosts of eight H100, as in machines/assumed-h100.yaml, or processes
// that share a host's cores. Round figures, only for choosing between layouts.
Machine assumed_machine(bool gpu);

// `host_link`, or where it is not known that of PCIe 5.0 with 16 lanes, about.
constexpr double kAssumedHostLink = 5e10;
inline double host_rate(const Machine& machine) {
  return machine.host_link > 0 ? machine.host_link : kAssumedHostLink;
}

// One line for each rate below `part` of its reference: the median of the ranks, if there are three
// or more, and `expected` if it is given.
std::vector<std::string> slow_parts(const std::vector<Machine>& ranks, const Machine* expected,
                                    double part = 0.8);

// The expected number of n ranks (or nodes) that hold an expert of a token with K choices.
double expected_holders(double n, double K);

// How a group of ranks is spread over hosts.
struct GroupTopology {
  int64_t ranks = 1;
  int64_t hosts = 1;  // among them
};

// Seconds of one collective over a group of W ranks with ring algorithms; `whole`: bytes of the
// gathered tensor.
//   all-gather, reduce-scatter   (W - 1) latency + whole (W - 1) / W / bandwidth
//   all-reduce                   twice that
//   all-to-all                   latency + exchanging x bytes sent / bandwidth, both links at once:
//                                with M hosts, W - W/M of the W - 1 peers are on another host
// A ring across hosts runs at the bandwidth of `between`.
double gather_seconds(const Machine& machine, const GroupTopology& group, double whole);
double exchange_seconds(const Machine& machine, const GroupTopology& group, double out);

}  // namespace troupe
