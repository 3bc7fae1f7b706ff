#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tutti/adapters/exchange/adasum.h"
#include "tutti/adapters/exchange/policy.h"
#include "tutti/core/communicator.h"

namespace tutti {

/// A tensor of the exchange's own state, for checkpoints; copies share the memory.
struct ExchangeState {
  std::string name;  // unique among the tensors of an exchange
  Tensor tensor;     // its values
};

/// Exchanges parameters, or their changes, after those steps of the inner optimizer that the policy
/// selects. Only the thread that takes the steps uses this object. The order in which fragments are
/// sent and received follows from the number of steps alone, so all ranks agree on it without a
/// message. A step that throws leaves the parameters that all ranks share as they were. After a
/// lost rank, make a new communicator and call distributed() again, which gives all ranks rank 0's
/// parameters.
class Rounds {
 public:
  /// `values` must already be equal on all ranks. They must be f32 or f64 in host memory; otherwise
  /// this throws Error(invalid_argument). `momenta` are the inner optimizer's state. Only the wire
  /// dtype of `reduce` is used, and only for changes.
  Rounds(Communicator& comm, const ExchangePolicy& policy, const ReduceOptions& reduce,
         std::vector<NamedTensor> values, std::vector<NamedTensor> momenta);
  /// Waits for the operations under way.
  ~Rounds();
  Rounds(const Rounds&) = delete;
  Rounds& operator=(const Rounds&) = delete;

  /// Returns whether the next step is one of the first, synchronous ones.
  bool next_step_is_synchronous() const { return steps() < policy_.synchronous_steps; }
  /// Does the exchanges that are due after a step of the inner optimizer. Only slow_momentum uses
  /// `learning_rate`.
  void after_step(double learning_rate);
  /// Finishes the exchange under way and gives all ranks the mean of their parameters, from which
  /// the next round begins. Call it at the end of training, or before a checkpoint. The outer
  /// momentum stays. All ranks call it after the same step.
  void consolidate();

  /// Waits until the fragment under way has arrived. Its result is used only in the step for which
  /// it is due. From the arrival until the next step, state() is complete. This call is local.
  void arrive();
  /// Returns the state that is equal on all ranks. "exchange.steps", i64[2], has the number of
  /// inner steps taken and the index of the fragment under way (-1: none). If the policy needs
  /// them, there are "exchange.shared.<parameter>" and "exchange.momentum.<parameter>". If
  /// fragments are sent early, there are "exchange.sent.<parameter>" and "exchange.rates", f64[2],
  /// of the fragment under way.
  const std::vector<ExchangeState>& state() const { return state_; }

 private:
  struct Part {
    std::string name;
    TensorView value;
    Tensor shared;    // the parameters that all ranks share; empty unless changes are exchanged
    Tensor momentum;  // momentum of the outer step; empty if it has none
    // The tensor that is sent and then holds the mean. Empty if the value itself is sent.
    Tensor sent;
  };
  int64_t steps() const { return steps_.as<int64_t>()[0]; }
  int under_way() const { return static_cast<int>(steps_.as<int64_t>()[1]); }  // -1: none
  void set_under_way(int fragment) { steps_.as<int64_t>()[1] = fragment; }
  size_t first_of(int fragment) const { return fragment_begins_[static_cast<size_t>(fragment)]; }
  void deal_fragments();
  void start(int fragment, double learning_rate);
  void finish(int fragment);
  void send(const std::string& group, std::vector<NamedTensor>& tensors,
            const ReduceOptions& reduce = {});
  void wait();  // waits for everything that was sent
  void use(Part& part, double learning_rate);
  double agreed_rate() const;

  Communicator& comm_;
  const ExchangePolicy policy_;
  ReduceOptions reduce_;
  std::vector<Part> parts_;
  std::optional<Adasum> adasum_;
  std::vector<NamedTensor> momenta_;
  std::vector<Work> works_;  // operations of the fragment under way
  Tensor rates_;             // f64[2]: the highest learning rate of all ranks, and minus the lowest
  std::vector<size_t> fragment_begins_;  // indices into parts_; one more than there are fragments
  Tensor steps_;                         // inner steps taken and the fragment under way, i64
  std::vector<ExchangeState> state_;
};

}  // namespace tutti
