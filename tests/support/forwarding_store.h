#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "tutti/backends/store.h"

namespace tutti::test {

/// Leaves everything to another store; a test's own derives from it and does one thing otherwise.
class ForwardingStore : public Store {
 public:
  explicit ForwardingStore(std::shared_ptr<Store> rest) : rest_(std::move(rest)) {}
  void set(const std::string& key, std::string_view value) override { rest().set(key, value); }
  std::string set_once(const std::string& key, std::string_view value) override {
    return rest().set_once(key, value);
  }
  std::optional<std::string> try_get(const std::string& key) override {
    return rest().try_get(key);
  }
  std::string get(const std::string& key, Deadline deadline) override {
    return rest().get(key, deadline);
  }
  int64_t add(const std::string& key, int64_t amount) override { return rest().add(key, amount); }
  int64_t raise(const std::string& key, int64_t least) override { return rest().raise(key, least); }
  void erase(const std::string& key) override { rest().erase(key); }
  void erase_all(const std::string& prefix) override { rest().erase_all(prefix); }

 protected:
  /// Every call goes through here.
  virtual Store& rest() { return *rest_; }

 private:
  const std::shared_ptr<Store> rest_;
};

}  // namespace tutti::test
