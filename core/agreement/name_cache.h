#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <unordered_map>

#include "tutti/core/agreement/request.h"

namespace tutti {

/// Names and signatures that all ranks know by number, so that repeated requests and answers are a
/// few bytes. Every rank applies the same remember() calls in the same order, so the tables stay
/// equal without a message. Least recently answered goes first. Numbers are never used twice.
class NameCache {
 public:
  struct Known {
    int64_t id = -1;
    std::string name;
    Signature signature;
  };
  explicit NameCache(int64_t capacity) : capacity_(capacity) {}

  /// The number of this name with exactly this signature, or -1.
  int64_t find(const std::string& name, const Signature& signature) const;
  /// Null if the number is not known (any more).
  const Known* find(int64_t id) const;
  /// An answer with this name was given (moves it to the most recent end). Returns its number; -1
  /// with capacity 0.
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
