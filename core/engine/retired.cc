#include "tutti/core/engine/retired.h"

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>

namespace tutti {

namespace {

bool lies_in(const Entry& entry, const Region& region) {
  const std::less<const std::byte*> before;
  const auto *begin = region.data(), *end = begin + region.bytes();
  return std::ranges::any_of(std::array{&entry.input, &entry.output}, [&](const auto* view) {
    return view->bytes() > 0 && before(view->data(), end) &&
           before(begin, view->data() + view->bytes());
  });
}

}  // namespace

bool Retired::holds(const Entry& entry) const {
  return std::ranges::any_of(regions_, [&](const auto& region) { return lies_in(entry, *region); });
}

std::vector<std::unique_ptr<Region>> Retired::take_unused(const std::vector<Entry*>& pending) {
  may_have_unused_ = false;
  const auto rest = std::ranges::partition(regions_, [&](const auto& region) {
    return std::ranges::any_of(pending,
                               [&](const Entry* entry) { return lies_in(*entry, *region); });
  });
  std::vector<std::unique_ptr<Region>> unused(std::move_iterator(rest.begin()),
                                              std::move_iterator(rest.end()));
  regions_.erase(rest.begin(), rest.end());
  return unused;
}

}  // namespace tutti
