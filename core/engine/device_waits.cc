#include "tutti/core/engine/device_waits.h"

namespace tutti {

namespace {

bool is_over(const std::weak_ptr<WorkState>& work) {
  const auto state = work.lock();
  return !state || state->done();
}

}  // namespace

bool DeviceWaits::add(const std::shared_ptr<WorkState>& work, StreamRef stream) {
  std::erase_if(streams_, [](const StreamWait& wait) { return is_over(wait.work); });
  if (work->done()) return false;
  streams_.push_back({stream, work});
  return true;
}

void DeviceWaits::find(Entry& entry) const {
  for (const auto& wait : streams_)
    if (wait.stream == entry.input.stream() && !is_over(wait.work))
      entry.behind.push_back(wait.work);
}

void DeviceWaits::waited_on_host(const std::string& name) {
  constexpr size_t kMost = 65536;  // bound for programs that use new names in every step
  if (on_host_.size() >= kMost) on_host_.clear();
  on_host_.insert(name);
}

}  // namespace tutti
