/* The fields of a tutti_call_t: which of them each kind refuses, where results go, groups, and
 * structs of programs with an earlier or a later header. */
#include <string.h>

#include "c_checks.h"

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)
#define EXPECT(condition) \
  if (!(condition)) return __FILE__ ":" TEXT(__LINE__) ": " #condition
#define EXPECT_OK(call) \
  if ((call) != TUTTI_OK) return tutti_last_error()

/* The last error is TUTTI_INVALID_ARGUMENT with exactly this text. */
static int says(int status, const char* text) {
  return status == TUTTI_INVALID_ARGUMENT && strcmp(tutti_last_error(), text) == 0;
}

const char* check_call_fields(tutti_comm_t comm) {
  static float values[8];
  static const int64_t rows[8];
  const tutti_tensor_t some = tutti_vector(values, 1, TUTTI_F32);
  const tutti_reduce_options_t mean = TUTTI_REDUCE_OPTIONS;
  tutti_reduce_options_t scaled = mean, scaled_after = mean, narrow = mean, urgent = mean;
  scaled.prescale = 2;
  scaled_after.postscale = 2;
  narrow.wire = TUTTI_F16;
  urgent.priority = 1;
  tutti_name_t handle;
  EXPECT_OK(tutti_declare(comm, "by handle", &some, &handle));
  tutti_work_t work;

  const struct {
    const tutti_call_t* call;
    const char* text;
  } started[] = {
      {CALL(-1), "-1 is not a kind of call (expected 0 to 10, 64 or 65)"},
      {CALL(13), "13 is not a kind of call (expected 0 to 10, 64 or 65)"},
      {CALL(TUTTI_ALLREDUCE, .name = "w", .input = &some, .root = 2),
       "allreduce \"w\": root has no meaning here (expected 0)"},
      {CALL(TUTTI_ALLREDUCE, .name = "w", .input = &some, .order = 1),
       "allreduce \"w\": order has no meaning here (expected 0)"},
      {CALL(TUTTI_ALLREDUCE, .name = "w", .input = &some, .flags = 1),
       "allreduce \"w\": flags has no meaning here (expected 0)"},
      {CALL(TUTTI_ALLREDUCE, .name = "w", .input = &some, .rows = rows),
       "allreduce \"w\": rows has no meaning here (expected NULL)"},
      {CALL(TUTTI_ALLREDUCE, .name = "w", .input = &some, .values = &some),
       "allreduce \"w\": values has no meaning here (expected NULL)"},
      {CALL(TUTTI_ALLGATHER, .name = "w", .input = &some, .rows = rows),
       "allgather \"w\": rows has no meaning here (expected NULL)"},
      {CALL(TUTTI_ALLGATHER, .name = "w", .input = &some, .options = &mean),
       "allgather \"w\": options has no meaning here (expected NULL)"},
      {CALL(TUTTI_BROADCAST, .handle = handle, .input = &some, .rows = rows),
       "broadcast \"by handle\": rows has no meaning here (expected NULL)"},
      {CALL(TUTTI_BROADCAST, .name = "w", .input = &some, .options = &mean),
       "broadcast \"w\": options has no meaning here (expected NULL)"},
      {CALL(TUTTI_REDUCE, .name = "w", .input = &some, .rows = rows),
       "reduce \"w\": rows has no meaning here (expected NULL)"},
      {CALL(TUTTI_REDUCE, .name = "w", .input = &some, .options = &scaled),
       "reduce \"w\": prescale of the options has no meaning here; leave it as "
       "TUTTI_REDUCE_OPTIONS sets it"},
      {CALL(TUTTI_GATHER, .name = "w", .input = &some, .rows = rows),
       "gather \"w\": rows has no meaning here (expected NULL)"},
      {CALL(TUTTI_SCATTER, .name = "w", .input = &some, .options = &mean),
       "scatter \"w\": options has no meaning here (expected NULL)"},
      {CALL(TUTTI_REDUCE_SCATTER, .name = "w", .input = &some, .root = 1),
       "reduce_scatter \"w\": root has no meaning here (expected 0)"},
      {CALL(TUTTI_ALLTOALL, .name = "w", .input = &some, .root = -1),
       "alltoall \"w\": root has no meaning here (expected 0)"},
      {CALL(TUTTI_SEND, .name = "w", .input = &some, .output = &some),
       "send \"w\": output has no meaning here (expected NULL)"},
      {CALL(TUTTI_SEND, .name = "w", .input = &some, .options = &mean),
       "send \"w\": options has no meaning here (expected NULL)"},
      {CALL(TUTTI_RECV, .name = "w", .input = &some),
       "recv \"w\": input has no meaning here (expected NULL)"},
      {CALL(TUTTI_BARRIER, .name = "w", .input = &some),
       "barrier \"w\": input has no meaning here (expected NULL)"},
      {CALL(TUTTI_JOIN, .name = "w"), "join \"w\": name has no meaning here (expected NULL)"},
      {CALL(TUTTI_JOIN, .handle = handle),
       "join \"by handle\": handle has no meaning here (expected NULL)"},
      {CALL(TUTTI_SPARSE_ALLREDUCE, .name = "w", .input = &some, .output = &some),
       "sparse_allreduce \"w\": output has no meaning here (expected NULL)"},
      {CALL(TUTTI_SPARSE_ALLREDUCE, .handle = handle, .input = &some, .values = &some),
       "sparse_allreduce \"by handle\": handle has no meaning here (expected NULL)"},
      {CALL(TUTTI_SPARSE_ALLREDUCE, .name = "w", .input = &some, .values = &some,
            .options = &urgent),
       "sparse_allreduce \"w\": priority of the options has no meaning here; leave it as "
       "TUTTI_REDUCE_OPTIONS sets it"},
      {CALL(TUTTI_SPARSE_ALLREDUCE, .name = "w", .input = &some), "values must not be NULL"},
      {CALL(TUTTI_ALLREDUCE, .input = &some), "allreduce: name must not be NULL"},
      {CALL(TUTTI_BARRIER), "barrier: name must not be NULL"},
      {CALL(TUTTI_ALLREDUCE, .name = "w", .handle = handle, .input = &some),
       "allreduce \"w\": it has a name and a handle; give one of the two"},
      {CALL(TUTTI_ALLREDUCE, .name = "w"), "input must not be NULL"},
      {CALL(TUTTI_BROADCAST, .name = "w"), "input must not be NULL"},
      {CALL(TUTTI_RECV, .name = "w"), "output must not be NULL"},
      {CALL(TUTTI_ALLGATHER, .handle = handle, .input = &some),
       "allgather \"by handle\": output must not be NULL: a call by handle allocates no result"},
  };
  for (size_t i = 0; i < sizeof started / sizeof *started; ++i) {
    work = (tutti_work_t)values;
    if (!says(tutti_start(comm, started[i].call, &work), started[i].text)) return started[i].text;
    EXPECT(work == NULL);
  }
  EXPECT(says(START(NULL, TUTTI_ALLTOALL, .name = "w", .input = &some),
              "alltoall \"w\": work must not be NULL: the result is its output"));
  EXPECT(strcmp(tutti_last_error_tensor(), "w") == 0);
  EXPECT(says(START(NULL, TUTTI_SPARSE_ALLREDUCE, .name = "w", .input = &some, .values = &some),
              "sparse_allreduce \"w\": work must not be NULL: the result is its output"));
  EXPECT(says(tutti_start(comm, NULL, NULL), "call must not be NULL"));
  EXPECT(says(tutti_start(NULL, CALL(TUTTI_JOIN), NULL), "comm must not be NULL"));

  const struct {
    const tutti_call_t* call;
    const char* text;
  } blocking[] = {
      {CALL(99), "99 is not a kind of call (expected 0 to 10, 64 or 65)"},
      {CALL(TUTTI_JOIN), "blocking join: there is no such call; start it by tutti_start()"},
      {CALL(TUTTI_SPARSE_ALLREDUCE, .name = "w"),
       "blocking sparse_allreduce \"w\": there is no such call; start it by tutti_start()"},
      {CALL(TUTTI_ALLREDUCE, .handle = handle, .input = &some),
       "blocking allreduce \"by handle\": handle has no meaning here (expected NULL)"},
      {CALL(TUTTI_ALLREDUCE, .input = &some), "blocking allreduce: name must not be NULL"},
      {CALL(TUTTI_ALLREDUCE, .name = "w", .input = &some, .options = &scaled_after),
       "blocking allreduce \"w\": postscale of the options has no meaning here; leave it as "
       "TUTTI_REDUCE_OPTIONS sets it"},
      {CALL(TUTTI_REDUCE_SCATTER, .name = "w", .input = &some, .output = &some, .options = &narrow),
       "blocking reduce_scatter \"w\": wire of the options has no meaning here; leave it as "
       "TUTTI_REDUCE_OPTIONS sets it"},
      {CALL(TUTTI_ALLREDUCE, .name = "w", .input = &some, .flags = (uint64_t)1 << 40),
       "blocking allreduce \"w\": flags has no meaning here (expected 0)"},
      {CALL(TUTTI_ALLTOALL, .name = "w", .input = &some, .output = &some, .rows = rows),
       "blocking alltoall \"w\": rows has no meaning here (expected NULL)"},
      {CALL(TUTTI_BARRIER, .name = "w"),
       "blocking barrier \"w\": name has no meaning here (expected NULL)"},
      {CALL(TUTTI_ALLGATHER, .name = "w", .input = &some), "output must not be NULL"},
  };
  for (size_t i = 0; i < sizeof blocking / sizeof *blocking; ++i)
    if (!says(tutti_run(comm, blocking[i].call), blocking[i].text)) return blocking[i].text;
  const tutti_tensor_t other = tutti_vector(values + 1, 1, TUTTI_F32);
  EXPECT(says(RUN(TUTTI_BROADCAST, .name = "w", .input = &some, .output = &other),
              "blocking broadcast \"w\": it is in place; give one of input and output"));
  EXPECT(says(tutti_run(comm, NULL), "call must not be NULL"));
  /* None of it did harm. */
  EXPECT_OK(RUN(TUTTI_BARRIER));
  return NULL;
}

/* Structs of programs that were built with an earlier or a later header. */
const char* check_struct_sizes(tutti_comm_t comm) {
  const float sum = (float)(tutti_size(comm) * (tutti_size(comm) + 1)) / 2;
  float value = (float)(tutti_rank(comm) + 1);
  tutti_tensor_t tensor = tutti_vector(&value, 1, TUTTI_F32);

  /* Earlier: prescale and what follows were not there yet, so that rubbish is behind its end. */
  tutti_reduce_options_t old;
  memset(&old, 0x55, sizeof old);
  old.struct_size = offsetof(tutti_reduce_options_t, prescale);
  old.op = TUTTI_SUM;
  old.wire = -1;
  EXPECT_OK(START(NULL, TUTTI_ALLREDUCE, .name = "earlier", .input = &tensor, .output = &tensor,
                  .options = &old));
  EXPECT(value == sum);

  /* Later: something new at the end, which is zero unless the program uses it. */
  struct {
    tutti_reduce_options_t known;
    int64_t new_field;
  } later = {TUTTI_REDUCE_OPTIONS, 0};
  later.known.struct_size = sizeof later;
  later.known.op = TUTTI_MAX;
  EXPECT_OK(START(NULL, TUTTI_ALLREDUCE, .name = "later", .input = &tensor, .output = &tensor,
                  .options = &later.known));
  EXPECT(value == sum);
  later.new_field = 7;
  EXPECT(START(NULL, TUTTI_ALLREDUCE, .name = "new", .input = &tensor, .output = &tensor,
               .options = &later.known) == TUTTI_INVALID_ARGUMENT);
  EXPECT(strstr(tutti_last_error(), "came after version") != NULL);

  /* What has no meaning yet is zero, and was not there in the header of a shorter struct. */
  tutti_reduce_options_t reserved = TUTTI_REDUCE_OPTIONS;
  EXPECT(offsetof(tutti_reduce_options_t, reserved) + sizeof reserved.reserved == sizeof reserved);
  reserved.op = TUTTI_MAX;
  reserved.reserved = 5;
  EXPECT(START(NULL, TUTTI_ALLREDUCE, .name = "reserved", .input = &tensor, .output = &tensor,
               .options = &reserved) == TUTTI_INVALID_ARGUMENT);
  EXPECT(strstr(tutti_last_error(), "reserved of the options is 5 (expected 0)") != NULL);
  reserved.struct_size = offsetof(tutti_reduce_options_t, priority);
  EXPECT_OK(START(NULL, TUTTI_ALLREDUCE, .name = "reserved", .input = &tensor, .output = &tensor,
                  .options = &reserved));
  EXPECT(value == sum);

  /* Never set, or set to what no header has. */
  const size_t none[] = {0, 3, 11, sizeof old - 4, sizeof old + 1, (size_t)-1};
  for (size_t i = 0; i < sizeof none / sizeof *none; ++i) {
    old.struct_size = none[i];
    EXPECT(START(NULL, TUTTI_ALLREDUCE, .name = "none", .input = &tensor, .output = &tensor,
                 .options = &old) == TUTTI_INVALID_ARGUMENT);
    EXPECT(strstr(tutti_last_error(), "start from TUTTI_REDUCE_OPTIONS") != NULL);
  }
  return NULL;
}

/* Calls of programs that were built with an earlier or a later header. */
const char* check_call_sizes(tutti_comm_t comm) {
  const float sum = (float)(tutti_size(comm) * (tutti_size(comm) + 1)) / 2;
  float value = (float)(tutti_rank(comm) + 1);
  const tutti_tensor_t tensor = tutti_vector(&value, 1, TUTTI_F32);

  /* Earlier: rows and flags were not there yet, so that rubbish is behind its end. */
  tutti_call_t old;
  memset(&old, 0x55, sizeof old);
  const tutti_call_t known = {.struct_size = offsetof(tutti_call_t, rows),
                              .kind = TUTTI_ALLREDUCE,
                              .name = "earlier",
                              .input = &tensor,
                              .options = OP(TUTTI_SUM)};
  memcpy(&old, &known, offsetof(tutti_call_t, rows));
  EXPECT_OK(tutti_start(comm, &old, NULL));
  EXPECT(value == sum);
  old.options = OP(TUTTI_MAX);
  EXPECT_OK(tutti_run(comm, &old));
  EXPECT(value == sum);

  /* Later: a new field at the end, which is zero unless the program uses it. */
  struct {
    tutti_call_t known;
    int64_t new_field;
  } later = {TUTTI_CALL(TUTTI_ALLREDUCE), 0};
  later.known.struct_size = sizeof later;
  later.known.name = "later";
  later.known.input = &tensor;
  later.known.options = OP(TUTTI_MAX);
  EXPECT_OK(tutti_start(comm, &later.known, NULL));
  EXPECT_OK(tutti_run(comm, &later.known));
  EXPECT(value == sum);
  later.new_field = 7;
  EXPECT(tutti_start(comm, &later.known, NULL) == TUTTI_INVALID_ARGUMENT);
  EXPECT(strstr(tutti_last_error(), "of the call asks for something that came after") != NULL);
  EXPECT(tutti_run(comm, &later.known) == TUTTI_INVALID_ARGUMENT);

  /* Never set, or set to what no header has. */
  const size_t none[] = {0, 3, 11, sizeof old - 4, sizeof old + 1, (size_t)-1};
  for (size_t i = 0; i < sizeof none / sizeof *none; ++i) {
    old.struct_size = none[i];
    EXPECT(tutti_start(comm, &old, NULL) == TUTTI_INVALID_ARGUMENT);
    EXPECT(strstr(tutti_last_error(), "start from TUTTI_CALL") != NULL);
    EXPECT(tutti_run(comm, &old) == TUTTI_INVALID_ARGUMENT);
    EXPECT(tutti_start_group(comm, "none", &old, 1, NULL) == TUTTI_INVALID_ARGUMENT);
    EXPECT(strstr(tutti_last_error(), "struct_size of the call is ") != NULL);
  }

  /* The calls of a group lie as far apart as the program's header says. */
  float pair[2] = {value, 2 * value};
  const tutti_tensor_t tensors[2] = {tutti_vector(&pair[0], 1, TUTTI_F32),
                                     tutti_vector(&pair[1], 1, TUTTI_F32)};
  int64_t close[2 * offsetof(tutti_call_t, rows) / sizeof(int64_t)];
  for (int i = 0; i < 2; ++i) {
    tutti_call_t call = known;
    call.name = i == 0 ? "first" : "second";
    call.input = &tensors[i];
    memcpy((char*)close + (size_t)i * call.struct_size, &call, call.struct_size);
  }
  EXPECT_OK(tutti_start_group(comm, "earlier", (const tutti_call_t*)close, 2, NULL));
  EXPECT(pair[0] == sum * (float)tutti_size(comm) && pair[1] == 2 * pair[0]);
  tutti_call_t differing[2] = {TUTTI_CALL(TUTTI_ALLREDUCE), TUTTI_CALL(TUTTI_ALLREDUCE)};
  for (int i = 0; i < 2; ++i) differing[i].name = "x", differing[i].input = &tensor;
  differing[1].struct_size = 8;
  EXPECT(tutti_start_group(comm, "x", differing, 2, NULL) == TUTTI_INVALID_ARGUMENT);
  EXPECT(strstr(tutti_last_error(), "call 1 has struct_size 8, call 0 has ") != NULL);
  return NULL;
}

const char* check_groups(tutti_comm_t comm) {
  const int rank = tutti_rank(comm), size = tutti_size(comm);
  float values[2] = {(float)rank, 1}, result = -1;
  const tutti_tensor_t tensors[2] = {tutti_vector(&values[0], 1, TUTTI_F32),
                                     tutti_vector(&values[1], 1, TUTTI_F32)};
  const tutti_tensor_t elsewhere = tutti_vector(&result, 1, TUTTI_F32);
  static const int64_t rows[8];
  tutti_work_t work;
  tutti_call_t fresh[2] = {TUTTI_CALL(TUTTI_ALLREDUCE), TUTTI_CALL(TUTTI_ALLREDUCE)}, calls[2];
  for (int i = 0; i < 2; ++i) fresh[i].name = i == 0 ? "p" : "q", fresh[i].input = &tensors[i];

  memcpy(calls, fresh, sizeof calls);
  calls[1].kind = TUTTI_REDUCE_SCATTER;
  EXPECT(says(tutti_start_group(comm, "g", calls, 2, &work),
              "group \"g\": call 1 (\"q\") has another kind than call 0 (\"p\"); give all calls of "
              "a group the same"));
  EXPECT(work == NULL && strcmp(tutti_last_error_tensor(), "q") == 0);
  calls[1] = fresh[1];
  calls[1].options = OP(TUTTI_SUM);
  EXPECT(says(tutti_start_group(comm, "g", calls, 2, &work),
              "group \"g\": call 1 (\"q\") has other options than call 0 (\"p\"); give all calls "
              "of a group the same"));
  for (int i = 0; i < 2; ++i) calls[i] = fresh[i], calls[i].kind = TUTTI_ALLGATHER;
  calls[1].output = &elsewhere;
  EXPECT(says(tutti_start_group(comm, "g", calls, 2, &work),
              "group \"g\": call 1 (\"q\") has an output, unlike call 0 (\"p\"); give all calls of "
              "a group the same"));
  calls[0].output = &elsewhere;
  calls[1].output = NULL;
  EXPECT(says(tutti_start_group(comm, "g", calls, 2, &work),
              "group \"g\": call 1 (\"q\") has no output, unlike call 0 (\"p\"); give all calls of "
              "a group the same"));
  calls[0].output = NULL;
  EXPECT(says(tutti_start_group(comm, "g", calls, 2, NULL),
              "grouped allgather \"p\": work must not be NULL: the result is its output"));
  calls[1].rows = rows;
  EXPECT(says(tutti_start_group(comm, "g", calls, 2, &work),
              "grouped allgather \"q\": rows has no meaning here (expected NULL)"));
  calls[0].kind = TUTTI_BROADCAST;
  EXPECT(says(tutti_start_group(comm, "g", calls, 2, &work),
              "grouped broadcast \"p\": there is no such call; start it by tutti_start()"));
  calls[0] = fresh[0];
  EXPECT_OK(tutti_declare(comm, "p", &tensors[0], &calls[0].handle));
  EXPECT(says(tutti_start_group(comm, "g", calls, 2, &work),
              "grouped allreduce \"p\": handle has no meaning here (expected NULL)"));
  calls[0].handle = NULL;
  calls[0].name = NULL;
  EXPECT(says(tutti_start_group(comm, "g", calls, 2, &work),
              "grouped allreduce: name must not be NULL"));
  EXPECT(says(tutti_start_group(comm, NULL, fresh, 2, &work), "group must not be NULL"));
  EXPECT(tutti_start_group(comm, "g", NULL, 0, &work) == TUTTI_INVALID_ARGUMENT);
  EXPECT(strstr(tutti_last_error(), "a group has a name and at least one tensor") != NULL);

  /* NULL and the mean are the same options; one result is in place and the other is not. */
  fresh[1].options = OP(TUTTI_AVERAGE);
  fresh[1].output = &elsewhere;
  EXPECT_OK(tutti_start_group(comm, "g", fresh, 2, NULL));
  EXPECT(values[0] == (float)(size - 1) / 2 && result == 1);
  return NULL;
}

const char* check_places_of_results(tutti_comm_t comm) {
  const int rank = tutti_rank(comm), size = tutti_size(comm), last = size - 1;
  const int32_t sum = size * (size - 1) / 2;
  int32_t mine = rank, result = -1, all[8];
  const tutti_tensor_t own = tutti_vector(&mine, 1, TUTTI_I32);
  const tutti_tensor_t other = tutti_vector(&result, 1, TUTTI_I32);
  const tutti_tensor_t joined = tutti_vector(all, size, TUTTI_I32);
  tutti_name_t handle;
  EXPECT_OK(tutti_declare(comm, "handle", &own, &handle));
  for (int blocking = 0; blocking < 2; ++blocking) {
    /* In place: no output, or the input as output. */
    for (int given = 0; given < 2; ++given) {
      tutti_call_t call = *CALL(TUTTI_ALLREDUCE, .name = "allreduce", .input = &own,
                                .output = given ? &own : NULL, .options = OP(TUTTI_SUM));
      mine = rank;
      EXPECT_OK(blocking ? tutti_run(comm, &call) : tutti_start(comm, &call, NULL));
      EXPECT(mine == sum);
      call.kind = TUTTI_REDUCE;
      call.name = "reduce";
      call.root = last;
      mine = rank;
      EXPECT_OK(blocking ? tutti_run(comm, &call) : tutti_start(comm, &call, NULL));
      EXPECT(mine == (rank == last ? sum : rank));
      call = *CALL(TUTTI_BROADCAST, .name = "broadcast", .root = last, .input = given ? &own : NULL,
                   .output = given ? NULL : &own);
      mine = rank;
      EXPECT_OK(blocking ? tutti_run(comm, &call) : tutti_start(comm, &call, NULL));
      EXPECT(mine == last);
    }
    mine = rank;
    tutti_call_t call = *CALL(TUTTI_ALLREDUCE, .name = "apart", .input = &own, .output = &other,
                              .options = OP(TUTTI_SUM));
    EXPECT_OK(blocking ? tutti_run(comm, &call) : tutti_start(comm, &call, NULL));
    EXPECT(mine == rank && result == sum);
  }
  EXPECT_OK(START(NULL, TUTTI_ALLREDUCE, .handle = handle, .input = &own, .output = &other,
                  .options = OP(TUTTI_MAX)));
  EXPECT(mine == rank && result == last);

  /* Only root gives a gather memory. Without it, the other ranks' works have no rows. */
  tutti_work_t work;
  tutti_tensor_t gathered;
  memset(all, 0, sizeof all);
  EXPECT_OK(START(NULL, TUTTI_GATHER, .name = "to last", .input = &own, .root = last,
                  .output = rank == last ? &joined : NULL));
  for (int i = 0; i < size; ++i) EXPECT(all[i] == (rank == last ? i : 0));
  EXPECT_OK(START(&work, TUTTI_GATHER, .name = "to last", .input = &own, .root = last,
                  .output = rank == last ? &joined : NULL));
  EXPECT_OK(tutti_work_wait(work));
  if (rank != last) {
    EXPECT_OK(tutti_work_output(work, 0, &gathered));
    EXPECT(gathered.shape[0] == 0);
  }
  tutti_work_release(work);
  if (rank == last) {
    EXPECT(says(START(NULL, TUTTI_GATHER, .name = "lost", .input = &own, .root = last),
                "gather \"lost\": work must not be NULL: the result is its output"));
    EXPECT(says(START(&work, TUTTI_GATHER, .handle = handle, .input = &own, .root = last),
                "gather \"handle\": output must not be NULL: a call by handle allocates no "
                "result"));
  }
  return NULL;
}
