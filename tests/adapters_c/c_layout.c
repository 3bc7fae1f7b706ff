/* Where the fields of structs lie that grow: what a program compiled with an older header relies
 * on. A line here never changes once it was in a release; a new field gets a line. The other
 * structs, the numbers and the functions are compared by `./dev check` (cmake/abi). */
#include "c_checks.h"

#define FIELD(type, field, offset, size)                                                   \
  _Static_assert(offsetof(type, field) == (offset) && sizeof(((type*)0)->field) == (size), \
                 #type "." #field " has moved, or changed its size")

FIELD(tutti_reduce_options_t, struct_size, 0, 8);
FIELD(tutti_reduce_options_t, op, 8, 4);
FIELD(tutti_reduce_options_t, wire, 12, 4);
FIELD(tutti_reduce_options_t, prescale, 16, 8);
FIELD(tutti_reduce_options_t, postscale, 24, 8);
FIELD(tutti_reduce_options_t, priority, 32, 4);
FIELD(tutti_reduce_options_t, reserved, 36, 4);

FIELD(tutti_call_t, struct_size, 0, 8);
FIELD(tutti_call_t, kind, 8, 4);
FIELD(tutti_call_t, root, 12, 4);
FIELD(tutti_call_t, name, 16, 8);
FIELD(tutti_call_t, handle, 24, 8);
FIELD(tutti_call_t, order, 32, 8);
FIELD(tutti_call_t, input, 40, 8);
FIELD(tutti_call_t, output, 48, 8);
FIELD(tutti_call_t, values, 56, 8);
FIELD(tutti_call_t, options, 64, 8);
FIELD(tutti_call_t, rows, 72, 8);
FIELD(tutti_call_t, flags, 80, 8);

FIELD(tutti_store_functions_t, struct_size, 0, 8);
FIELD(tutti_store_functions_t, context, 8, 8);
FIELD(tutti_store_functions_t, get, 16, 8);
FIELD(tutti_store_functions_t, compare_set, 24, 8);
FIELD(tutti_store_functions_t, set, 32, 8);
FIELD(tutti_store_functions_t, add, 40, 8);
FIELD(tutti_store_functions_t, wait, 48, 8);
FIELD(tutti_store_functions_t, erase, 56, 8);
FIELD(tutti_store_functions_t, erase_all, 64, 8);
FIELD(tutti_store_functions_t, destroy, 72, 8);

FIELD(tutti_array_t, struct_size, 0, 8);
FIELD(tutti_array_t, name, 8, 8);
FIELD(tutti_array_t, dtype, 16, 4);
FIELD(tutti_array_t, dimensions, 20, 4);
FIELD(tutti_array_t, shape, 24, 64);
FIELD(tutti_array_t, strides, 88, 8);
FIELD(tutti_array_t, device, 96, 4);
FIELD(tutti_array_t, device_index, 100, 4);
FIELD(tutti_array_t, may_be_left_out, 104, 4);
FIELD(tutti_array_t, reserved, 108, 4);

FIELD(tutti_statistics_t, struct_size, 0, 8);
FIELD(tutti_statistics_t, operations, 8, 8);
FIELD(tutti_statistics_t, tensors, 16, 8);
FIELD(tutti_statistics_t, buckets, 24, 8);
FIELD(tutti_statistics_t, replayed_buckets, 32, 8);
FIELD(tutti_statistics_t, vetoed_buckets, 40, 8);
FIELD(tutti_statistics_t, data_messages, 48, 8);
FIELD(tutti_statistics_t, data_bytes, 56, 8);
FIELD(tutti_statistics_t, control_messages, 64, 8);
FIELD(tutti_statistics_t, control_bytes, 72, 8);
FIELD(tutti_statistics_t, wakeups, 80, 8);
FIELD(tutti_statistics_t, allocations, 88, 8);
FIELD(tutti_statistics_t, wait_seconds, 96, 8);
FIELD(tutti_statistics_t, exposed_seconds, 104, 8);
FIELD(tutti_statistics_t, skew_seconds, 112, 8);
FIELD(tutti_statistics_t, plans_locked, 120, 8);
FIELD(tutti_statistics_t, predicted_messages, 128, 8);
FIELD(tutti_statistics_t, predicted_bytes, 136, 8);
FIELD(tutti_statistics_t, negotiation_messages, 144, 8);
FIELD(tutti_statistics_t, caller_runs, 152, 8);
FIELD(tutti_statistics_t, copied_bytes, 160, 8);

FIELD(tutti_region_handle_t, struct_size, 0, 8);
FIELD(tutti_region_handle_t, kind, 8, 4);
FIELD(tutti_region_handle_t, descriptor, 12, 4);
FIELD(tutti_region_handle_t, offset, 16, 8);
FIELD(tutti_region_handle_t, bytes, 24, 8);

int c_layout_holds(void) { return 1; }
