#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/core/agreement/request.h"

namespace tutti {

/// Matches the requests of all ranks by name and checks that they agree; the heart of the
/// coordinator. Pure: no thread, no socket; time comes in as a value. A request is answered once,
/// as soon as every rank that has not joined made it; a group only when all its members are there.
/// A receive from any rank takes the oldest send of its name to its rank that no receive from that
/// very rank waits for; sends beyond that wait for the next receive.
class Negotiator {
 public:
  explicit Negotiator(int size) : size_(size), joined_(static_cast<size_t>(size), false) {}

  void add(int rank, Request request, Clock::time_point now);
  /// A rank left: what needs all ranks, or that rank, is answered with this error, now and later.
  /// `joins`: how often it joined, as its farewell says.
  void leave(int rank, const Error& error, uint64_t joins);
  /// What became ready since the last call: by priority, then in order of completion.
  std::vector<Response> take_ready();
  /// Forgets all unanswered requests for a name (they moved into a plan).
  void forget(const std::string& name);

  /// An unanswered name, for the stall report. Ranks that wait until all have joined are listed
  /// too. Their wait counts from the last request of any rank, since it may last as long as the
  /// others go on.
  struct Waiting {
    std::string name;
    CollectiveKind kind;
    Clock::time_point since;
    std::vector<int> present;
    std::vector<int> missing;
  };
  /// The longest wait first; of equal ones that which began first.
  std::vector<Waiting> waiting() const;
  bool idle() const {
    return table_.empty() && from_any_.empty() && ready_.empty() && groups_.empty() &&
           !awaits_joins();
  }
  int joined_count() const { return joined_count_; }
  /// Whether a rank that has joined, and has not left, waits for the others to join.
  bool awaits_joins() const;
  bool has_lost_a_rank() const { return left_.has_value(); }

 private:
  struct Pending {
    std::vector<std::optional<Request>> requests;  // one a rank
    int count = 0;
    bool is_pair = false;   // two ranks must ask, and not all
    bool from_any = false;  // the receive named no rank
    Clock::time_point since;
    uint64_t order = 0;
  };
  struct Group {
    std::vector<Response> members;
  };
  /// A receive from any rank to which nobody has sent yet.
  struct FromAny {
    int rank;  // that asks
    Request request;
    Clock::time_point since;
    uint64_t order;
  };
  void add_from_any(int rank, Request request, Clock::time_point now);
  /// Returns the key under which it waits.
  std::string put(int rank, Request request, Clock::time_point now, bool from_any);
  void settle(const std::string& key);
  void release_from_any();
  bool complete(const Pending& pending) const;
  /// The error of the rank whose leaving keeps this operation from ending; null: it may end.
  const Error* hopeless(const Pending& pending) const;
  bool never_all_join() const;
  void finish(const std::string& key);
  void release_complete();
  Response answer(const std::string& name, const Pending& pending) const;

  const int size_;
  std::vector<bool> joined_;
  int joined_count_ = 0;
  // For each rank that left, gone_ has the error of operations that need it. left_ has the error
  // of the first that left.
  std::vector<std::optional<Error>> gone_ =
      std::vector<std::optional<Error>>(static_cast<size_t>(size_));
  std::optional<Error> left_;
  int last_joined_ = -1;
  uint64_t rounds_of_joins_ = 0;  // in which all ranks joined
  Clock::time_point last_asked_;  // by any rank
  uint64_t next_order_ = 0;
  std::unordered_map<std::string, Pending> table_;
  std::vector<FromAny> from_any_;  // oldest first; few
  std::map<std::string, Group> groups_;
  std::vector<Response> ready_;
};

}  // namespace tutti
