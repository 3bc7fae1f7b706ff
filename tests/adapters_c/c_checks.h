#ifndef TESTS_ADAPTERS_C_C_CHECKS_H_
#define TESTS_ADAPTERS_C_C_CHECKS_H_

#include <tutti.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A call with some of its fields, such as CALL(TUTTI_GATHER, .name = "g", .input = &tensor). */
#define CALL(...) (&(tutti_call_t){.struct_size = sizeof(tutti_call_t), .kind = __VA_ARGS__})
#define START(work, ...) tutti_start(comm, CALL(__VA_ARGS__), work)
#define RUN(...) tutti_run(comm, CALL(__VA_ARGS__))
/* The initial options of a reduction, but for the op. */
#define OP(op_)                                                             \
  (&(tutti_reduce_options_t){.struct_size = sizeof(tutti_reduce_options_t), \
                             .op = op_,                                     \
                             .wire = -1,                                    \
                             .prescale = 1,                                 \
                             .postscale = 1})

/* Each runs one rank's part; the first thing that is not as it should be, as text, or NULL. */
typedef const char* (*c_check)(tutti_comm_t comm);

const char* check_reductions(tutti_comm_t comm);
const char* check_fast_paths(tutti_comm_t comm);
const char* check_arena(tutti_comm_t comm);
const char* check_moving_data(tutti_comm_t comm);
const char* check_works(tutti_comm_t comm);
const char* check_split_and_join(tutti_comm_t comm);
const char* check_refusals(tutti_comm_t comm);
const char* check_mismatch(tutti_comm_t comm);
const char* check_place(tutti_comm_t comm);
const char* check_shrink(tutti_comm_t comm);
const char* check_statistics(tutti_comm_t comm);
/* c_forms.c; the second and third close the communicator. */
const char* check_more_forms(tutti_comm_t comm);
const char* check_callbacks(tutti_comm_t comm);
const char* check_closing_ends_a_wait(tutti_comm_t comm);
const char* check_timeline(tutti_comm_t comm);
const char* check_bytes(tutti_comm_t comm);
/* c_calls.c */
const char* check_struct_sizes(tutti_comm_t comm);
const char* check_call_fields(tutti_comm_t comm);
const char* check_call_sizes(tutti_comm_t comm);
const char* check_groups(tutti_comm_t comm);
const char* check_places_of_results(tutti_comm_t comm);
/* c_handles.c */
const char* check_handles(tutti_comm_t comm);
const char* check_more_places(tutti_comm_t comm);
/* c_layout.c, which a compiler checks. */
int c_layout_holds(void);

#ifdef __cplusplus
}
#endif

#endif /* TESTS_ADAPTERS_C_C_CHECKS_H_ */
