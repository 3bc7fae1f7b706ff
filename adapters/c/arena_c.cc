// Gradient arenas of the C interface.

#include "tutti/adapters/c/sized.h"
#include "tutti/adapters/c/status.h"
#include "tutti/adapters/c/tutti.h"
#include "tutti/adapters/c/values.h"
#include "tutti/core/arena.h"

struct tutti_arena {
  tutti_arena(tutti::Communicator& communicator, std::vector<tutti::GradientArena::Array> arrays,
              const tutti::ReduceOptions& options)
      : arena(communicator, std::move(arrays), options) {}
  tutti::GradientArena arena;
};

namespace tutti::c {

namespace {

GradientArena::Array array_from(const tutti_array_t* given) {
  const auto array =
      read_sized(given, tutti_array_t TUTTI_ARRAY, "an array of an arena", "TUTTI_ARRAY");
  need(array.name, "an array's name");
  if (array.reserved != 0)
    throw refused(fmt::format("{}: reserved is {} (expected 0); start from TUTTI_ARRAY", array.name,
                              array.reserved));
  GradientArena::Array result;
  result.name = array.name;
  result.shape = shape_from(array.shape, array.dimensions, array.name);
  result.dtype = dtype_from(array.dtype);
  result.device = device_from(array.device, array.device_index, array.name);
  if (array.strides != nullptr)
    result.strides.assign(array.strides, array.strides + array.dimensions);
  result.may_be_left_out = array.may_be_left_out != 0;
  return result;
}

// Runs a call on one array, after checking that the arena and the name are given.
template <class Body>
int of_array(tutti_arena_t arena, const char* name, Body&& body) {
  return guarded([&] {
    need(arena, "arena");
    need(name, "name");
    body(arena->arena);
  });
}

}  // namespace

}  // namespace tutti::c

using namespace tutti;     // NOLINT: the functions below are the C side of that namespace
using namespace tutti::c;  // NOLINT

int tutti_arena_create(tutti_comm_t comm, const tutti_array_t* arrays, size_t count,
                       const tutti_reduce_options_t* options, tutti_arena_t* arena) {
  if (arena != nullptr) *arena = nullptr;
  return guarded([&] {
    auto& communicator = communicator_of(comm);
    need(arena, "arena");
    if (count > 0) need(arrays, "arrays");
    std::vector<GradientArena::Array> list;
    // The arrays are struct_size bytes apart, which the header of the program determines.
    const auto* at = reinterpret_cast<const std::byte*>(arrays);
    for (size_t i = 0; i < count; ++i, at += arrays->struct_size) {
      const auto* array = reinterpret_cast<const tutti_array_t*>(at);
      if (array->struct_size != arrays->struct_size)
        throw refused(
            fmt::format("array {} has struct_size {}, array 0 has {}; give all from "
                        "TUTTI_ARRAY",
                        i, array->struct_size, arrays->struct_size));
      list.push_back(array_from(array));
    }
    *arena = new tutti_arena(communicator, std::move(list), options_from(options));
  });
}

void tutti_arena_destroy(tutti_arena_t arena) { delete arena; }

int tutti_arena_array(tutti_arena_t arena, const char* name, tutti_tensor_t* array) {
  return of_array(arena, name, [&](GradientArena& all) {
    need(array, "array");
    *array = tensor_of(all[name]);
  });
}

int tutti_arena_ready(tutti_arena_t arena, const char* name) {
  return of_array(arena, name, [&](GradientArena& all) { all.ready(name); });
}

int tutti_arena_leave_out(tutti_arena_t arena, const char* name) {
  return of_array(arena, name, [&](GradientArena& all) { all.leave_out(name); });
}

int tutti_arena_wait(tutti_arena_t arena) {
  return guarded([&] {
    need(arena, "arena");
    arena->arena.wait();
  });
}

int tutti_arena_wait_for(tutti_arena_t arena, double seconds, int* goes_on) {
  if (goes_on != nullptr) *goes_on = 0;
  const int status = guarded([&] {
    need(arena, "arena");
    arena->arena.wait(Deadline::after(seconds));
  });
  if (goes_on != nullptr && status == TUTTI_TIMEOUT && arena->arena.step_begun()) *goes_on = 1;
  return status;
}

int tutti_arena_used(tutti_arena_t arena, const char* name, int* used) {
  return of_array(arena, name, [&](GradientArena& all) {
    need(used, "used");
    *used = all.used(name) ? 1 : 0;
  });
}
