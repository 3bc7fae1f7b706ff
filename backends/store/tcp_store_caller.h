#pragma once

#include <optional>
#include <string>

#include "tutti/backends/store.h"
#include "tutti/backends/store/tcp_store_protocol.h"
#include "tutti/base/process/fork_guard.h"

namespace tutti {

/// The Store's calls as requests and replies; how they travel is left to call().
class StoreCaller : public Store {
 public:
  void set(const std::string& key, std::string_view value) override;
  std::string set_once(const std::string& key, std::string_view value) override;
  std::optional<std::string> try_get(const std::string& key) override;
  std::string get(const std::string& key, Deadline deadline) override;
  int64_t add(const std::string& key, int64_t amount) override;
  int64_t raise(const std::string& key, int64_t least) override;
  void erase(const std::string& key) override;
  void erase_all(const std::string& prefix) override;

 protected:
  /// The reply to this request, whose id is call()'s to choose. A reply that takes longer than
  /// `deadline` and a grace is an Error(unavailable).
  virtual StoreReply call(StoreRequest request, Deadline deadline) = 0;

 private:
  StoreReply ask(StoreRequest request, Deadline deadline);
  int64_t count(StoreOp op, const std::string& key, int64_t argument);

  const ForkGuard fork_guard_;  // the connection belongs to this process, not to its forks
};

}  // namespace tutti
