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

/// Matches the requests of all ranks by name and checks that they agree. It is the core of the
/// coordinator. Pure: it has no thread and no socket, and time is an argument. A request is
/// answered once, as soon as every rank has made it or has joined. A group is answered only when
/// all its members are requested. A receive from any rank matches the oldest send of its name to
/// its rank. It does not take a send for which a receive that names the sending rank is waiting.
/// Later sends wait for the next receive.
class Negotiator {
 public:
  explicit Negotiator(int size) : size_(size), joined_(static_cast<size_t>(size), false) {}

  void add(int rank, Request request, Clock::time_point now);
  /// Records that a rank left. Operations that need all ranks, or need that rank, are answered with
  /// `error`, now and later. `joins` is the number of joins in the rank's farewell.
  void leave(int rank, const Error& error, uint64_t joins);
  /// Returns the answers that became ready since the last call, by priority and then in order of
  /// completion.
  std::vector<Response> take_ready();
  /// Forgets all unanswered requests for a name, because they moved into a plan.
  void forget(const std::string& name);

  /// A name that is not answered yet, for the stall report. Pending joins are listed too. Their
  /// waiting time counts from the last request of any rank, because a join may wait as long as the
  /// other ranks keep working.
  struct Waiting {
    std::string name;
    CollectiveKind kind;
    Clock::time_point since;
    std::vector<int> present;
    std::vector<int> missing;
  };
  /// Returns the names that wait, longest wait first. Among equally long waits, the oldest request
  /// comes first.
  std::vector<Waiting> waiting() const;
  bool idle() const {
    return table_.empty() && from_any_.empty() && ready_.empty() && groups_.empty() &&
           !awaits_joins();
  }
  int joined_count() const { return joined_count_; }
  /// Returns whether a rank has joined, has not left, and waits for the other ranks to join.
  bool awaits_joins() const;
  bool has_lost_a_rank() const { return left_.has_value(); }

 private:
  struct Pending {
    std::vector<std::optional<Request>> requests;  // one per rank
    int count = 0;
    bool is_pair = false;   // a send or receive: two requests complete it
    bool from_any = false;  // its receive accepted any rank
    Clock::time_point since;
    uint64_t order = 0;
  };
  struct Group {
    std::vector<Response> members;
  };
  /// A receive from any rank for which no send has arrived.
  struct FromAny {
    int rank;  // the rank that receives
    Request request;
    Clock::time_point since;
    uint64_t order;
  };
  void add_from_any(int rank, Request request, Clock::time_point now);
  /// Adds the request to the table and returns its key.
  std::string put(int rank, Request request, Clock::time_point now, bool from_any);
  void settle(const std::string& key);
  void release_from_any();
  bool complete(const Pending& pending) const;
  /// Returns the error if a rank left and this operation can therefore never complete, else null.
  const Error* hopeless(const Pending& pending) const;
  bool never_all_join() const;
  void finish(const std::string& key);
  void release_complete();
  Response answer(const std::string& name, const Pending& pending) const;

  const int size_;
  std::vector<bool> joined_;
  int joined_count_ = 0;
  // gone_ has an error for each rank that left. Operations that need this rank get it. left_ is the
  // error of the first rank that left.
  std::vector<std::optional<Error>> gone_ =
      std::vector<std::optional<Error>>(static_cast<size_t>(size_));
  std::optional<Error> left_;
  int last_joined_ = -1;
  uint64_t rounds_of_joins_ = 0;  // number of times that all ranks had joined
  Clock::time_point last_asked_;  // time of the last request of any rank
  uint64_t next_order_ = 0;
  std::unordered_map<std::string, Pending> table_;
  std::vector<FromAny> from_any_;  // oldest first; usually a few
  std::map<std::string, Group> groups_;
  std::vector<Response> ready_;
};

}  // namespace tutti
