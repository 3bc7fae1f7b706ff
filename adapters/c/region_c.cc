// The C interface's memory regions, which the ranks of a host share.

#include <algorithm>
#include <cstring>

#include "tutti/adapters/c/status.h"
#include "tutti/adapters/c/tutti.h"
#include "tutti/adapters/c/values.h"

struct tutti_region {
  tutti::SharedRegion region;
};

using namespace tutti;     // NOLINT: the functions below are the C side of that namespace
using namespace tutti::c;  // NOLINT

int tutti_allocate(tutti_comm_t comm, int64_t bytes, tutti_region_t* region) {
  if (region != nullptr) *region = nullptr;
  return guarded([&] {
    auto& communicator = communicator_of(comm);
    need(region, "region");
    *region = new tutti_region{communicator.allocate(bytes)};
  });
}

void* tutti_region_data(tutti_region_t region) {
  void* data = nullptr;
  guarded([&] {
    need(region, "region");
    data = region->region.data();
  });
  return data;
}

int tutti_region_export(tutti_region_t region, tutti_region_handle_t* handle) {
  return guarded([&] {
    need(region, "region");
    need(handle, "handle");
    const size_t size = handle->struct_size;
    if (size < sizeof size)
      throw refused(
          fmt::format("struct_size of the handle is {} (expected {})", size, sizeof *handle));
    const auto found = region->region.handle();
    const tutti_region_handle_t all = {std::min(size, sizeof all), static_cast<int32_t>(found.kind),
                                       found.descriptor, found.offset, found.bytes};
    std::memcpy(handle, &all, all.struct_size);
  });
}

void tutti_region_free(tutti_region_t region) { delete region; }
