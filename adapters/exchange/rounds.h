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
  std::string name;  // unique among those of an exchange
  Tensor tensor;     // its values
};

/// Exchanges parameters, or their changes, after the steps of the inner optimizer that the policy
/// says. Used by the thread that steps. Fragments set out and come back in one order that follows
/// from the number of steps alone, so that all ranks agree on it without a message. A step that
/// throws leaves the parameters that all ranks share as they were; after a lost rank make a new
/// communicator and call distributed() again, which gives all ranks rank 0's parameters.
class Rounds {
 public:
  /// `values` are equal on all ranks by now, f32 or f64 in host memory, or
  /// Error(invalid_argument); `momenta` are the inner optimizer's state. Of `reduce` only a wire is
  /// taken, for changes.
  Rounds(Communicator& comm, const ExchangePolicy& policy, const ReduceOptions& reduce,
         std::vector<NamedTensor> values, std::vector<NamedTensor> momenta);
  /// Waits for what is on its way.
  ~Rounds();
  Rounds(const Rounds&) = delete;
  Rounds& operator=(const Rounds&) = delete;

  /// Whether the step to come is one of the first, synchronous ones.
  bool next_step_is_synchronous() const { return steps() < policy_.synchronous_steps; }
  /// The inner optimizer has stepped, at `learning_rate` (only slow_momentum asks).
  void after_step(double learning_rate);
  /// Brings what is on its way home and gives all ranks the mean of their parameters, from which
  /// the next round begins: at the end of training, or before a checkpoint. The outer momentum
  /// stays. All ranks call it after the same step.
  void consolidate();

  /// Waits until what is on its way has arrived, without using it before its step has come; from
  /// then on and until the next step state() says everything. Local.
  void arrive();
  /// What all ranks share, equal on all of them: "exchange.shared.<parameter>" and
  /// "exchange.momentum.<parameter>", as far as the policy has them; where fragments set out early,
  /// "exchange.sent.<parameter>" and "exchange.rates", f64[2], of the one on its way; and
  /// "exchange.steps", i64[2]: the inner steps taken, and which fragment that is (-1: none).
  const std::vector<ExchangeState>& state() const { return state_; }

 private:
  struct Part {
    std::string name;
    TensorView value;
    Tensor shared;    // what all ranks hold; empty unless changes are exchanged
    Tensor momentum;  // the outer step's; empty: it has none
    Tensor sent;      // on its way, then the mean; empty: the value itself is
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
  void wait();  // for all that was sent
  void use(Part& part, double learning_rate);
  double agreed_rate() const;

  Communicator& comm_;
  const ExchangePolicy policy_;
  ReduceOptions reduce_;
  std::vector<Part> parts_;
  std::optional<Adasum> adasum_;
  std::vector<NamedTensor> momenta_;
  std::vector<Work> works_;              // of what is on its way
  Tensor rates_;                         // the highest of all ranks, and minus the lowest, f64
  std::vector<size_t> fragment_begins_;  // into parts_, one more than there are fragments
  Tensor steps_;                         // inner steps taken and the fragment under way, i64
  std::vector<ExchangeState> state_;
};

}  // namespace tutti
