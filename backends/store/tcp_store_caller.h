#pragma once

#include <optional>
#include <string>

#include "tutti/backends/store.h"
#include "tutti/backends/store/tcp_store_protocol.h"
#include "tutti/base/process/fork_guard.h"

namespace tutti {

/// Turns the Store's calls into requests and replies. Derived classes transport them in call().
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
  /// Returns the reply to this request and chooses its id. Throws Error(unavailable) if the reply
  /// takes longer than `deadline` and a grace.
  virtual StoreReply call(StoreRequest request, Deadline deadline) = 0;

 private:
  StoreReply ask(StoreRequest request, Deadline deadline);
  int64_t count(StoreOp op, const std::string& key, int64_t argument);

  const ForkGuard fork_guard_;  // the connection belongs to this process; forks must not use it
};

}  // namespace tutti
