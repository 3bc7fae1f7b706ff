#include "tutti/core/agreement/name_cache.h"

namespace tutti {

int64_t NameCache::find(const std::string& name, const Signature& signature) const {
  const auto found = by_name_.find(name);
  if (found == by_name_.end() || found->second->signature != signature) return -1;
  return found->second->id;
}

const NameCache::Known* NameCache::find(int64_t id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &*found->second;
}

int64_t NameCache::remember(const std::string& name, const Signature& signature) {
  if (capacity_ <= 0) return -1;
  const auto found = by_name_.find(name);
  if (found != by_name_.end()) {
    if (found->second->signature == signature) {
      known_.splice(known_.begin(), known_, found->second);
      return found->second->id;
    }
    drop(found->second);
  }
  if (static_cast<int64_t>(known_.size()) >= capacity_) drop(std::prev(known_.end()));
  known_.push_front({next_id_++, name, signature});
  by_name_[name] = known_.begin();
  by_id_[known_.front().id] = known_.begin();
  return known_.front().id;
}

void NameCache::drop(std::list<Known>::iterator known) {
  by_name_.erase(known->name);
  by_id_.erase(known->id);
  known_.erase(known);
}

}  // namespace tutti
