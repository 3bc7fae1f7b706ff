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

/// The type of one part of an `answers` message, which is a sequence of parts.
enum class AnswerType : uint8_t { response = 0, plan = 1 };

/// Rank 0's side of the negotiation. It receives the requests of all ranks (including rank 0),
/// answers a name when all ranks have requested it, and makes a plan when steps repeat. Its only
/// output is `send`. Only the thread that currently runs rank 0's engine calls it.
class Coordinator {
 public:
  /// Sends the message to any rank, also to rank 0. Messages to one rank arrive in order.
  using Send = std::function<void(int rank, std::span<const std::byte> message)>;
  Coordinator(const Options& options, int size, Send send);

  void on_requests(int rank, WireReader reader, Clock::time_point now);
  void on_plan_joined(int rank, WireReader reader);
  void on_plan_failed(WireReader reader);
  void on_plan_left(int rank, WireReader reader);
  /// Records that a rank left. See Negotiator::leave for the parameters.
  void on_left(int rank, const Error& error, uint64_t joins);
  /// Sends the answers that became ready since the last call.
  void answer();

  bool idle() const { return negotiator_.idle(); }
  std::vector<Negotiator::Waiting> waiting() const { return negotiator_.waiting(); }

 private:
  /// Returns whether a plan may begin: no rank has left and no join is pending.
  bool may_lock() const;
  std::optional<std::vector<Plan::Tensor>> learn(const Response& response);
  void lock(std::vector<Plan::Tensor> tensors, std::vector<WireWriter>& messages);

  const Options& options_;
  const int size_;
  const Send send_;
  Negotiator negotiator_;
  NameCache cache_;
  PlanLearner learner_;            // learns from all operations that a plan can replay
  PlanLearner allreduce_learner_;  // learns from allreduces only, for steps whose other calls vary
  PairLearner pair_learner_;       // learns from sends and receives
  uint32_t next_plan_ = 1;
  // A rank's progress with the plan, as its messages report it.
  enum class Progress : uint8_t { before, inside, after };
  std::optional<Plan> plan_;  // the last plan; kept until all ranks have left it
  bool has_failed_ = false;
  std::vector<Progress> progress_;
  // A join counts after the rank's earlier requests. If those used ids that the coordinator has
  // forgotten, the join waits until the rank has sent those requests again in full.
  struct AskedAgain {
    int count = 0;       // number of resend messages that the rank has not answered completely
    bool joins = false;  // the rank has requested a join meanwhile
  };
  std::vector<AskedAgain> asked_again_;
};

}  // namespace tutti
