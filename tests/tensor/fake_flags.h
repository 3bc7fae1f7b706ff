#pragma once

#include <functional>

#include "tutti/tensor/device_runtime.h"

namespace tutti {

/// One rank's part of an allreduce by flags, as a thread runs it: block after block, which every
/// rank does in one order.
std::function<void()> fake_flags(const DeviceFlags& flags, uint64_t seed);

/// The blocks of the last one that any rank began.
int last_fake_flag_blocks();

}  // namespace tutti
