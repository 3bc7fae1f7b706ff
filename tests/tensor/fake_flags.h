#pragma once

#include <functional>

#include "tutti/tensor/device_runtime.h"

namespace tutti {

/// Returns one rank's part of an allreduce by flags, for a thread to run. It runs block after
/// block; all ranks use the same order.
std::function<void()> fake_flags(const DeviceFlags& flags, uint64_t seed);

/// Returns the number of blocks of the last allreduce that any rank began.
int last_fake_flag_blocks();

}  // namespace tutti
