#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "tests/faults/view.h"
#include "tutti/core/tutti.h"

namespace tutti::test {

/// Runs steps of one kind of collective and checks the results. Each sent value encodes the rank,
/// the step and the part.
class KindSteps {
 public:
  explicit KindSteps(Communicator& comm)
      : comm_(comm),
        own_(kPart),
        part_(kPart),
        all_(kPart * static_cast<size_t>(comm.size())),
        others_(all_.size()) {}

  /// `kind` is for example "allgather", or "allgather_blocking" for the blocking form. "send_recv"
  /// is a ring.
  void run(std::string_view kind, int step) {
    constexpr std::string_view kSuffix = "_blocking";
    step_ = step;
    root_ = step % comm_.size();
    blocking_ = kind.ends_with(kSuffix);
    if (blocking_) kind.remove_suffix(kSuffix.size());
    if (kind == "allgather") return allgather();
    if (kind == "reduce_scatter") return reduce_scatter();
    if (kind == "broadcast") return broadcast();
    if (kind == "alltoall") return alltoall();
    if (kind == "reduce") return reduce();
    if (kind == "gather") return gather();
    if (kind == "scatter") return scatter();
    if (kind == "barrier") return blocking_ ? comm_.barrier_blocking() : comm_.barrier().wait();
    if (kind == "send_recv") return send_recv();
    throw std::runtime_error(fmt::format("no steps of {}", kind));
  }

 private:
  static constexpr size_t kPart = 30'000;

  float value(int rank, int part = 0) const {
    return static_cast<float>(rank + 10 * part + 100 * (step_ % 8));
  }
  float sum(int part) const {
    float total = 0;
    for (int rank = 0; rank < comm_.size(); ++rank) total += value(rank, part);
    return total;
  }
  bool is_root() const { return comm_.rank() == root_; }
  static void fill(std::vector<float>& values, float value) {
    std::fill(values.begin(), values.end(), value);
  }
  void fill_parts(std::vector<float>& values, int rank) const {
    for (int part = 0; part < comm_.size(); ++part)
      std::fill_n(values.begin() + part * static_cast<std::ptrdiff_t>(kPart), kPart,
                  value(rank, part));
  }
  void expect(const std::vector<float>& values, int part, float wanted) const {
    const auto begin = values.begin() + part * static_cast<std::ptrdiff_t>(kPart);
    const auto end = begin + kPart;
    const auto wrong = std::find_if(begin, end, [=](float got) { return got != wanted; });
    if (wrong != end)
      throw std::runtime_error(fmt::format("rank {} has {} in step {}, part {}, not {}",
                                           comm_.rank(), *wrong, step_, part, wanted));
  }

  void allgather() {
    fill(own_, value(comm_.rank()));
    if (blocking_)
      comm_.allgather_blocking("x", view(own_), view(all_));
    else
      comm_.allgather("x", view(own_), view(all_)).wait();
    for (int rank = 0; rank < comm_.size(); ++rank) expect(all_, rank, value(rank));
  }
  void reduce_scatter() {
    fill_parts(all_, comm_.rank());
    if (blocking_)
      comm_.reduce_scatter_blocking("x", view(all_), view(part_), ReduceOp::sum);
    else
      comm_.reduce_scatter("x", view(all_), view(part_), {.op = ReduceOp::sum}).wait();
    expect(part_, 0, sum(comm_.rank()));
  }
  void broadcast() {
    fill(own_, value(comm_.rank()));
    if (blocking_)
      comm_.broadcast_blocking("x", view(own_), root_);
    else
      comm_.broadcast(of_root(), view(own_), root_).wait();
    expect(own_, 0, value(root_));
  }
  void alltoall() {
    fill_parts(all_, comm_.rank());
    if (blocking_)
      comm_.alltoall_blocking("x", view(all_), view(others_));
    else
      comm_.alltoall("x", view(all_), view(others_), {}).wait();
    for (int rank = 0; rank < comm_.size(); ++rank)
      expect(others_, rank, value(rank, comm_.rank()));
  }
  void reduce() {
    fill(own_, value(comm_.rank()));
    if (blocking_)
      comm_.reduce_blocking("x", view(own_), view(part_), root_);
    else
      comm_.reduce(of_root(), view(own_), view(part_), root_).wait();
    if (is_root()) expect(part_, 0, sum(0));
  }
  void gather() {
    fill(own_, value(comm_.rank()));
    if (blocking_)
      comm_.gather_blocking("x", view(own_), view(all_), root_);
    else
      comm_.gather(of_root(), view(own_), view(all_), root_).wait();
    for (int rank = 0; is_root() && rank < comm_.size(); ++rank) expect(all_, rank, value(rank));
  }
  void scatter() {
    fill_parts(all_, comm_.rank());
    if (blocking_)
      comm_.scatter_blocking("x", view(all_), view(part_), root_);
    else
      comm_.scatter(of_root(), view(all_), view(part_), root_).wait();
    expect(part_, 0, value(root_, comm_.rank()));
  }
  void send_recv() {
    const int right = (comm_.rank() + 1) % comm_.size();
    const int left = (comm_.rank() + comm_.size() - 1) % comm_.size();
    if (right == comm_.rank()) return;
    fill(own_, value(comm_.rank()));
    const auto mine = fmt::format("from {}", comm_.rank()), theirs = fmt::format("from {}", left);
    if (blocking_) {
      comm_.sendrecv_blocking(mine, view(own_), right, theirs, view(part_), left);
    } else {
      auto sent = comm_.send(mine, view(own_), right);
      comm_.recv(theirs, view(part_), left).wait();
      sent.wait();
    }
    expect(part_, 0, value(left));
  }
  std::string of_root() const { return fmt::format("x{}", root_); }

  Communicator& comm_;
  std::vector<float> own_, part_;    // one part each
  std::vector<float> all_, others_;  // a part for each rank
  int step_ = 0;
  int root_ = 0;
  bool blocking_ = false;
};

inline void run_steps_of(Communicator& comm, std::string_view kind, int steps) {
  KindSteps of_kind(comm);
  for (int step = 0; step < steps; ++step) of_kind.run(kind, step);
}

}  // namespace tutti::test
