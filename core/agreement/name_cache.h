#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <unordered_map>

#include "tutti/core/agreement/request.h"

namespace tutti {

/// Numbers for names and signatures that all ranks know, so that repeated requests and answers take
/// a few bytes. Every rank makes the same remember() calls in the same order, so the tables stay
/// equal without messages. The entry whose last answer is oldest is dropped first. A number is
/// never reused.
class NameCache {
 public:
  struct Known {
    int64_t id = -1;
    std::string name;
    Signature signature;
  };
  explicit NameCache(int64_t capacity) : capacity_(capacity) {}

  /// Returns the number of this name with exactly this signature, or -1.
  int64_t find(const std::string& name, const Signature& signature) const;
  /// Returns null if the number is unknown or was dropped.
  const Known* find(int64_t id) const;
  /// Records an answer with this name, which becomes the most recent entry. Returns its number, or
  /// -1 with capacity 0.
  int64_t remember(const std::string& name, const Signature& signature);

 private:
  void drop(std::list<Known>::iterator known);
  const int64_t capacity_;
  int64_t next_id_ = 0;
  std::list<Known> known_;  // most recent first
  std::unordered_map<std::string, std::list<Known>::iterator> by_name_;
  std::unordered_map<int64_t, std::list<Known>::iterator> by_id_;
};

}  // namespace tutti
