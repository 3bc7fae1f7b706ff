#include "tutti/backends/device/device_backend.h"

#include <fmt/format.h>
#include <sys/epoll.h>

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/collectives/schedule.h"

namespace tutti {

DeviceBackend::DeviceBackend(std::unique_ptr<Backend> rest, std::shared_ptr<DeviceBell> bell)
    : rest_(std::move(rest)), bell_(std::move(bell)), capabilities_(rest_->capabilities()) {
  poller_.watch(rest_->descriptor(), EPOLLIN);
  poller_.watch(bell_->bell.descriptor(), EPOLLIN);
}

DeviceBackend::~DeviceBackend() { poller_.forget(rest_->descriptor()); }

void DeviceBackend::check(const Collective& collective, Device device,
                          std::string_view called) const {
  if (!capabilities_.serves_on(device, collective.kind, collective.dtype, collective.op))
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} has no {} of {} with {}", called, to_string(collective.kind),
                            to_string(collective.dtype), to_string(collective.op)));
  require_valid({collective.kind,
                 rest_->transport()->rank(),
                 rest_->transport()->size(),
                 collective.root,
                 collective.send_counts,
                 collective.recv_counts,
                 {},
                 false});
}

Device choose_device(const Context& context, std::string_view user) {
  const auto kind = has_device_runtime(DeviceKind::fake) ? DeviceKind::fake : DeviceKind::cuda;
  int count = 0;
  try {
    count = device_runtime(kind).count();
  } catch (const Error& error) {
    throw Error(ErrorCode::unavailable,
                fmt::format("there is no GPU that {} could use ({})", user, error.what()));
  }
  if (count == 0)
    throw Error(ErrorCode::unavailable,
                fmt::format("there is no GPU that {} could use (CUDA shows none); use another "
                            "backend",
                            user));
  const auto hosts = context.hosts();
  const auto own = static_cast<size_t>(context.rank);
  int local = context.places[own].local_rank;
  if (local < 0)
    local = static_cast<int>(std::count(hosts.begin(), hosts.begin() + context.rank, hosts[own]));
  return {kind, local % count};
}

}  // namespace tutti
