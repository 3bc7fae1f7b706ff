#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <unordered_map>

#include "tutti/core/agreement/request.h"

namespace tutti {

/// Assigns ids to names and their signatures, so that repeated requests and answers need only a few
/// bytes. Every rank makes the same remember() calls in the same order, so all ranks have equal
/// tables without exchanging them. If the table is full, the entry whose last answer is oldest is
/// dropped. An id is never reused.
class NameCache {
 public:
  struct Known {
    int64_t id = -1;
    std::string name;
    Signature signature;
  };
  explicit NameCache(int64_t capacity) : capacity_(capacity) {}

  /// Returns the id of this name with exactly this signature, or -1.
  int64_t find(const std::string& name, const Signature& signature) const;
  /// Returns the entry with this id, or null if it is unknown or was dropped.
  const Known* find(int64_t id) const;
  /// Records an answer for this name, which becomes the most recent entry. Returns its id, or -1 if
  /// the capacity is 0.
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
