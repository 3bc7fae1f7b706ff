/* The forms of operations that bindings of other languages need beside those of c_checks.c. */
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "c_checks.h"

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)
#define EXPECT(condition) \
  if (!(condition)) return __FILE__ ":" TEXT(__LINE__) ": " #condition
#define EXPECT_OK(call) \
  if ((call) != TUTTI_OK) return tutti_last_error()

const char* check_more_forms(tutti_comm_t comm) {
  const int rank = tutti_rank(comm), size = tutti_size(comm);
  tutti_work_t work;
  tutti_tensor_t first, second;
  int32_t own[2] = {rank, -rank}, all[16];
  tutti_tensor_t input = tutti_vector(own, 2, TUTTI_I32);
  tutti_tensor_t output = tutti_vector(all, (int64_t)2 * size, TUTTI_I32);
  EXPECT_OK(START(NULL, TUTTI_ALLGATHER, .name = "into", .input = &input, .output = &output));
  for (int i = 0; i < size; ++i) EXPECT(all[2 * i] == i && all[2 * i + 1] == -i);
  EXPECT(START(NULL, TUTTI_ALLGATHER, .name = "into", .input = &input) == TUTTI_INVALID_ARGUMENT);

  tutti_call_t calls[2] = {TUTTI_CALL(TUTTI_ALLGATHER), TUTTI_CALL(TUTTI_ALLGATHER)};
  tutti_tensor_t pair[2] = {input, tutti_vector(&own[1], 1, TUTTI_I32)};
  for (int i = 0; i < 2; ++i) calls[i].name = i == 0 ? "p" : "q", calls[i].input = &pair[i];
  EXPECT_OK(tutti_start_group(comm, "gathers", calls, 2, &work));
  EXPECT_OK(tutti_work_output(work, 0, &first));
  EXPECT_OK(tutti_work_output(work, 1, &second));
  EXPECT(first.shape[0] == 2 * size && second.shape[0] == size);
  EXPECT(((int32_t*)second.data)[size - 1] == 1 - size);
  tutti_work_release(work);

  double rows[8], column[8];
  for (int i = 0; i < size; ++i) rows[i] = column[i] = i + rank;
  tutti_tensor_t dealt[2] = {tutti_vector(rows, size, TUTTI_F64),
                             tutti_matrix(column, size, 1, TUTTI_F64)};
  for (int i = 0; i < 2; ++i) calls[i].kind = TUTTI_REDUCE_SCATTER, calls[i].input = &dealt[i];
  EXPECT_OK(tutti_start_group(comm, "scatters", calls, 2, &work));
  EXPECT_OK(tutti_work_output(work, 1, &second));
  EXPECT(second.dimensions == 2 && second.shape[0] == 1);
  EXPECT(*(double*)second.data == rank + (size - 1) / 2.0);
  tutti_work_release(work);

  int64_t at[2] = {rank, 7};
  float values[4] = {1, 2, (float)rank, 4};
  tutti_tensor_t indices = tutti_vector(at, 2, TUTTI_I64);
  tutti_tensor_t sparse = tutti_matrix(values, 2, 2, TUTTI_F32);
  EXPECT_OK(START(&work, TUTTI_SPARSE_ALLREDUCE, .name = "sparse", .input = &indices,
                  .values = &sparse, .options = OP(TUTTI_AVERAGE)));
  EXPECT_OK(tutti_work_output(work, 0, &first));
  EXPECT_OK(tutti_work_output(work, 1, &second));
  EXPECT(first.shape[0] == 2 * size && second.shape[0] == 2 * size && second.shape[1] == 2);
  EXPECT(((int64_t*)first.data)[2 * size - 2] == size - 1);
  EXPECT(((float*)second.data)[4 * size - 2] == (float)(size - 1) / (float)size);
  tutti_work_release(work);
  EXPECT(START(&work, TUTTI_SPARSE_ALLREDUCE, .name = "sparse", .input = &sparse, .values = &sparse,
               .options = OP(TUTTI_SUM)) == TUTTI_INVALID_ARGUMENT);

  /* Into memory of the caller, by name and blocking. */
  int64_t gathered[8], scattered = 0, sums[8], sum = 0, sent[8], came[8], mine = rank;
  const int last = size - 1;
  for (int i = 0; i < size; ++i) sums[i] = i, sent[i] = 10 * rank + i;
  tutti_tensor_t one = tutti_vector(&mine, 1, TUTTI_I64);
  tutti_tensor_t many = tutti_vector(gathered, size, TUTTI_I64);
  tutti_tensor_t part = tutti_vector(&scattered, 1, TUTTI_I64);
  tutti_tensor_t addends = tutti_vector(sums, size, TUTTI_I64);
  tutti_tensor_t total = tutti_vector(&sum, 1, TUTTI_I64);
  tutti_tensor_t out = tutti_vector(sent, size, TUTTI_I64),
                 in = tutti_vector(came, size, TUTTI_I64);
  tutti_reduce_options_t add = TUTTI_REDUCE_OPTIONS;
  add.op = TUTTI_SUM;
  for (int blocking = 0; blocking < 2; ++blocking) {
    memset(gathered, 0, sizeof gathered);
    memset(came, 0, sizeof came);
    scattered = sum = 0;
    const tutti_tensor_t* at_last = rank == last ? &many : NULL;
    if (blocking) {
      EXPECT_OK(RUN(TUTTI_GATHER, .name = "g", .input = &one, .output = at_last, .root = last));
      EXPECT_OK(RUN(TUTTI_SCATTER, .name = "s", .input = at_last, .output = &part, .root = last));
      EXPECT_OK(RUN(TUTTI_REDUCE_SCATTER, .name = "rs", .input = &addends, .output = &total,
                    .options = OP(TUTTI_SUM)));
      EXPECT_OK(RUN(TUTTI_ALLTOALL, .name = "a", .input = &out, .output = &in));
    } else {
      EXPECT_OK(
          START(NULL, TUTTI_GATHER, .name = "g", .input = &one, .output = at_last, .root = last));
      EXPECT_OK(
          START(NULL, TUTTI_SCATTER, .name = "s", .input = at_last, .output = &part, .root = last));
      EXPECT_OK(START(NULL, TUTTI_REDUCE_SCATTER, .name = "rs", .input = &addends, .output = &total,
                      .options = &add));
      EXPECT_OK(START(NULL, TUTTI_ALLTOALL, .name = "a", .input = &out, .output = &in));
    }
    for (int i = 0; i < size; ++i) EXPECT(rank != last || gathered[i] == i);
    EXPECT(scattered == rank && sum == (int64_t)rank * size);
    for (int i = 0; i < size; ++i) EXPECT(came[i] == 10 * i + rank);
  }
  EXPECT_OK(RUN(TUTTI_ALLGATHER, .name = "ag", .input = &one, .output = &many));
  for (int i = 0; i < size; ++i) EXPECT(gathered[i] == i);
  EXPECT_OK(RUN(TUTTI_REDUCE, .name = "r", .input = &one, .output = rank == last ? &total : NULL,
                .root = last, .options = OP(TUTTI_SUM)));
  EXPECT(rank != last || sum == size * (size - 1) / 2);
  EXPECT(RUN(TUTTI_SCATTER, .name = "s", .root = last) == TUTTI_INVALID_ARGUMENT);

  EXPECT_OK(RUN(TUTTI_BROADCAST, .name = "blocking", .input = &input, .root = size - 1));
  EXPECT(own[0] == size - 1);
  EXPECT_OK(RUN(TUTTI_BARRIER));
  if (size > 1) {
    const int next = (rank + 1) % size, previous = (rank + size - 1) % size;
    char sends[32], receives[32];
    snprintf(sends, sizeof sends, "from %d", rank);
    snprintf(receives, sizeof receives, "from %d", previous);
    float mine = (float)rank, theirs = -1;
    const tutti_tensor_t sent = tutti_vector(&mine, 1, TUTTI_F32);
    const tutti_tensor_t received = tutti_vector(&theirs, 1, TUTTI_F32);
    tutti_call_t send = TUTTI_CALL(TUTTI_SEND), recv = TUTTI_CALL(TUTTI_RECV);
    send.name = sends, send.input = &sent, send.root = next;
    recv.name = receives, recv.output = &received, recv.root = previous;
    for (int step = 0; step < 8; ++step) {
      theirs = -1;
      EXPECT_OK(tutti_sendrecv(comm, &send, &recv));
      EXPECT(theirs == (float)previous);
    }
    if (rank == 0) EXPECT_OK(RUN(TUTTI_SEND, .name = "one way", .input = &sent, .root = 1));
    if (rank == 1) {
      EXPECT_OK(RUN(TUTTI_RECV, .name = "one way", .output = &received));
      EXPECT(theirs == 0);
    }
    EXPECT(RUN(TUTTI_SEND, .name = "self", .input = &sent, .root = rank) == TUTTI_INVALID_ARGUMENT);
    EXPECT(RUN(TUTTI_RECV, .name = "self", .root = next) == TUTTI_INVALID_ARGUMENT);
    EXPECT(tutti_sendrecv(comm, &send, &send) == TUTTI_INVALID_ARGUMENT);
    EXPECT(strstr(tutti_last_error(), "takes a send and a recv, not send and send") != NULL);
    EXPECT(tutti_sendrecv(comm, &send, NULL) == TUTTI_INVALID_ARGUMENT);
    recv.name = NULL;
    EXPECT(tutti_sendrecv(comm, &send, &recv) == TUTTI_INVALID_ARGUMENT);
    EXPECT(strcmp(tutti_last_error(), "blocking recv: name must not be NULL") == 0);
  }
  // None closes while two still talk.
  EXPECT_OK(RUN(TUTTI_BARRIER));
  EXPECT(tutti_hosts(comm) == 1 && strcmp(tutti_backend(comm), "memory") == 0);
  EXPECT(tutti_hosts(NULL) == -1 && tutti_backend(NULL) == NULL);
  return NULL;
}

struct outcome {
  int calls, status, rank;
  char text[256];
};

static void keep_outcome(void* context, int status) {
  struct outcome* outcome = context;
  ++outcome->calls;
  outcome->status = status;
  outcome->rank = tutti_last_error_rank();
  if (status != TUTTI_OK) strncpy(outcome->text, tutti_last_error(), sizeof outcome->text - 1);
}

const char* check_callbacks(tutti_comm_t comm) {
  const int size = tutti_size(comm), last = size - 1;
  float values[2] = {1, 1};
  tutti_tensor_t tensor = tutti_vector(values, 2, TUTTI_F32);
  tutti_work_t work;
  struct outcome good = {0}, bad = {0}, late = {0};
  EXPECT_OK(tutti_allreduce(comm, "v", &tensor, TUTTI_SUM, &work));
  EXPECT_OK(tutti_work_then(work, keep_outcome, &good));
  EXPECT_OK(tutti_work_wait_on(work, NULL));
  EXPECT_OK(tutti_work_then(work, keep_outcome, &late)); /* it is over: at once */
  EXPECT(late.calls == 1 && late.status == TUTTI_OK);
  EXPECT(tutti_work_then(work, NULL, NULL) == TUTTI_INVALID_ARGUMENT);
  EXPECT(tutti_work_then(NULL, keep_outcome, NULL) == TUTTI_INVALID_ARGUMENT);
  tutti_work_release(work);

  /* The error comes to the callback as it does to a wait. */
  if (size > 1) {
    tensor = tutti_vector(values, tutti_rank(comm) == last ? 1 : 2, TUTTI_F32);
    EXPECT_OK(tutti_allreduce(comm, "w", &tensor, TUTTI_SUM, &work));
    EXPECT_OK(tutti_work_then(work, keep_outcome, &bad));
    EXPECT(tutti_work_wait(work) == TUTTI_MISMATCH);
    tutti_work_release(work);
  }
  /* Closing runs the callbacks that are due. */
  EXPECT_OK(tutti_barrier(comm, "all have theirs", NULL));
  EXPECT_OK(tutti_close(comm, NULL));
  EXPECT(good.calls == 1 && good.status == TUTTI_OK);
  EXPECT(size == 1 || (bad.calls == 1 && bad.status == TUTTI_MISMATCH && bad.rank == last &&
                       strstr(bad.text, "f32[2]") != NULL));

  EXPECT_OK(tutti_close(comm, NULL));
  EXPECT(tutti_barrier(comm, "too late", NULL) == TUTTI_CLOSED);
  EXPECT(tutti_rank(comm) >= 0 && tutti_size(comm) == size);
  EXPECT(tutti_close(NULL, NULL) == TUTTI_INVALID_ARGUMENT);
  EXPECT_OK(tutti_close(comm, NULL));
  EXPECT(tutti_close(NULL, "of nothing") == TUTTI_INVALID_ARGUMENT);
  return NULL;
}

const char* check_closing_ends_a_wait(tutti_comm_t comm) {
  if (tutti_size(comm) < 2) return NULL;
  tutti_work_t work;
  struct outcome outcome = {0};
  if (tutti_rank(comm) == 0) {
    EXPECT_OK(tutti_barrier(comm, "nobody else comes", &work));
    EXPECT_OK(tutti_work_then(work, keep_outcome, &outcome));
    EXPECT_OK(tutti_close(comm, "sample 17 is damaged"));
    EXPECT(tutti_work_wait_for(work, 20) == TUTTI_CLOSED);
    EXPECT(outcome.calls == 1 && outcome.status == TUTTI_CLOSED);
    tutti_work_release(work);
  } else {
    EXPECT(tutti_barrier(comm, "rank 0 has left", NULL) == TUTTI_PEER_LEFT);
    EXPECT(strstr(tutti_last_error(), "because of an error (sample 17 is damaged)") != NULL);
    EXPECT(tutti_last_error_rank() == 0);
  }
  return NULL;
}

const char* check_timeline(tutti_comm_t comm) {
  char file[64];
  sprintf(file, "/tmp/tutti_c_timeline.%d.%d", (int)getpid(), tutti_size(comm));
  EXPECT_OK(tutti_start_timeline(comm, file));
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  const double begin = (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
  EXPECT_OK(tutti_barrier(comm, "traced", NULL));
  EXPECT_OK(tutti_timeline_span(comm, "of the program", begin, begin + 0.25));
  EXPECT(tutti_timeline_span(comm, "turned", begin, begin - 1) == TUTTI_INVALID_ARGUMENT);
  EXPECT(strstr(tutti_last_error(), "\"turned\" ends 1 s before it begins") != NULL);
  EXPECT(tutti_timeline_span(comm, "never", -1, 1) == TUTTI_INVALID_ARGUMENT);
  EXPECT(strstr(tutti_last_error(), "begin is -1 (expected seconds of CLOCK_MONOTONIC)") != NULL);
  EXPECT(tutti_timeline_span(comm, NULL, begin, begin) == TUTTI_INVALID_ARGUMENT);
  EXPECT_OK(tutti_stop_timeline(comm));
  if (tutti_rank(comm) == 0) {
    FILE* trace = fopen(file, "r");
    EXPECT(trace != NULL);
    char text[65536];
    const size_t length = fread(text, 1, sizeof text - 1, trace);
    fclose(trace);
    unlink(file);
    text[length] = 0;
    EXPECT(strstr(text, "traced") != NULL);
    const char* span = strstr(text, "of the program");
    EXPECT(span != NULL && strstr(span, "\"dur\":250000") != NULL);
  }
  EXPECT(tutti_start_timeline(comm, NULL) == TUTTI_INVALID_ARGUMENT);
  EXPECT(tutti_start_timeline(NULL, file) == TUTTI_INVALID_ARGUMENT);
  EXPECT(tutti_stop_timeline(NULL) == TUTTI_INVALID_ARGUMENT);
  return NULL;
}

const char* check_bytes(tutti_comm_t comm) {
  const int rank = tutti_rank(comm), size = tutti_size(comm), last = size - 1;
  const char* words[4] = {"", "one", "two words", "x"};
  tutti_bytes_t bytes;
  size_t length;
  EXPECT_OK(tutti_allgather_bytes(comm, "words", words[rank], strlen(words[rank]), &bytes));
  EXPECT(tutti_bytes_parts(bytes) == (size_t)size);
  for (int i = 0; i < size; ++i) {
    const void* part = tutti_bytes_part(bytes, (size_t)i, &length);
    EXPECT(part != NULL && length == strlen(words[i]) && memcmp(part, words[i], length) == 0);
  }
  EXPECT(tutti_bytes_part(bytes, 0, NULL) != NULL);
  EXPECT(tutti_bytes_part(bytes, (size_t)size, &length) == NULL && length == 0);
  EXPECT(strstr(tutti_last_error(), "there is no part ") != NULL);
  tutti_bytes_release(bytes);

  /* What the others give is not looked at; nothing at all can be told too. */
  const int is_root = rank == last;
  EXPECT_OK(tutti_broadcast_bytes(comm, "told", is_root ? "of root" : NULL, is_root ? 8 : 0, last,
                                  &bytes));
  EXPECT(tutti_bytes_parts(bytes) == 1);
  EXPECT(strcmp(tutti_bytes_part(bytes, 0, &length), "of root") == 0 && length == 8);
  tutti_bytes_release(bytes);
  EXPECT_OK(tutti_broadcast_bytes(comm, "nothing", NULL, 0, 0, &bytes));
  EXPECT(tutti_bytes_part(bytes, 0, &length) != NULL && length == 0);
  tutti_bytes_release(bytes);

  /* A root that has none is heard of by all. */
  EXPECT(tutti_broadcast_bytes(comm, "told", NULL, is_root ? 8 : 0, last, &bytes) ==
         TUTTI_INVALID_ARGUMENT);
  EXPECT(strstr(tutti_last_error(), "could not hand in its part, so no rank gets any: ") != NULL);
  EXPECT(tutti_last_error_rank() == last);

  bytes = (tutti_bytes_t)&length;
  EXPECT(tutti_allgather_bytes(comm, "none", NULL, 1, &bytes) == TUTTI_INVALID_ARGUMENT);
  EXPECT(bytes == NULL);
  EXPECT(tutti_broadcast_bytes(comm, "nowhere", NULL, 0, size, &bytes) == TUTTI_INVALID_ARGUMENT);
  EXPECT(tutti_allgather_bytes(comm, "none", NULL, 0, NULL) == TUTTI_INVALID_ARGUMENT);
  EXPECT(tutti_bytes_parts(NULL) == 0 && tutti_bytes_part(NULL, 0, &length) == NULL);
  tutti_bytes_release(NULL);
  return NULL;
}
