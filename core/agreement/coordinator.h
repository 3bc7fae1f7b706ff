#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/core/agreement/messages.h"
#include "tutti/core/agreement/negotiator.h"
#include "tutti/core/agreement/pair_learner.h"
#include "tutti/core/agreement/plan.h"
#include "tutti/core/settings/options.h"

namespace tutti {

/// What an `answers` message holds, one after another.
enum class AnswerType : uint8_t { response = 0, plan = 1 };

/// Rank 0's other half: takes the requests of all ranks (its own included), answers when all have
/// asked, and locks a plan when steps repeat. Pure but for what it hands to `send`. Called by the
/// holder of the token of rank 0's engine.
class Coordinator {
 public:
  /// `send(rank, message)` delivers to any rank, 0 included, in order.
  using Send = std::function<void(int rank, std::span<const std::byte> message)>;
  Coordinator(const Options& options, int size, Send send);

  void on_requests(int rank, WireReader reader, Clock::time_point now);
  void on_plan_joined(int rank, WireReader reader);
  void on_plan_failed(WireReader reader);
  void on_plan_left(int rank, WireReader reader);
  /// A rank left; see Negotiator::leave.
  void on_left(int rank, const Error& error, uint64_t joins);
  /// Sends what became ready since the last call.
  void answer();

  bool idle() const { return negotiator_.idle(); }
  std::vector<Negotiator::Waiting> waiting() const { return negotiator_.waiting(); }

 private:
  /// Whether a plan may begin: no rank has left, and no join is to be counted.
  bool may_lock() const;
  std::optional<std::vector<Plan::Tensor>> learn(const Response& response);
  void lock(std::vector<Plan::Tensor> tensors, std::vector<WireWriter>& messages);

  const Options& options_;
  const int size_;
  const Send send_;
  Negotiator negotiator_;
  NameCache cache_;
  PlanLearner learner_;            // of steps with all that a plan can replay
  PlanLearner allreduce_learner_;  // of the allreduces among it, where the rest changes
  PairLearner pair_learner_;       // of sends and receives
  uint32_t next_plan_ = 1;
  // How far a rank has come with the plan, by what it has said.
  enum class Progress : uint8_t { before, inside, after };
  std::optional<Plan> plan_;  // the last one locked, until all ranks are after it
  bool has_failed_ = false;
  std::vector<Progress> progress_;
  // A rank's join counts after what it asked for before, so it waits until the rank has told in
  // full what this one had forgotten.
  struct AskedAgain {
    int count = 0;  // resend messages that are not answered yet; an empty message ends each answer
    bool joins = false;  // it has joined meanwhile
  };
  std::vector<AskedAgain> asked_again_;
};

}  // namespace tutti
