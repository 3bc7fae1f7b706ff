#pragma once

#include <optional>
#include <string>

#include "tutti/backends/store.h"
#include "tutti/backends/store/tcp_store_protocol.h"
#include "tutti/base/process/fork_guard.h"

namespace tutti {

/// A Store that turns its calls into requests and replies. Derived classes transport them in
/// call().
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
  /// Sends the request with an id of its own and returns the reply. Throws Error(unavailable) if no
  /// reply comes within `deadline` and a grace period.
  virtual StoreReply call(StoreRequest request, Deadline deadline) = 0;

 private:
  StoreReply ask(StoreRequest request, Deadline deadline);
  int64_t count(StoreOp op, const std::string& key, int64_t argument);

  const ForkGuard fork_guard_;  // forks must not use the connection of this process
};

}  // namespace tutti
