/* Tutti for C, and for every language that can call C: <tutti.h>.
 *
 *   tutti_comm_t comm;
 *   if (tutti_create(&comm) != TUTTI_OK) return puts(tutti_last_error()), 1;
 *   tutti_tensor_t gradient = tutti_vector(memory, count, TUTTI_F32);
 *   tutti_allreduce(comm, "gradient", &gradient, TUTTI_AVERAGE, NULL);
 *   tutti_destroy(comm);
 *
 * Every call that returns int gives TUTTI_OK or a status, and tutti_last_error() then says in one
 * line what went wrong. Calls may come from any thread. Names match operations over all ranks;
 * ranks may submit them in any order.
 *
 * Structs that grow with versions begin with struct_size, which says how much of them the program
 * knows. What a program built earlier does not know is as in the struct's initializer; what a later
 * one knows beyond this library must be zero.
 *
 * `work`: where to put a handle of the operation, to be waited for and released; the tensors'
 * memory belongs to the operation until it is done (names, shapes and counts are copied). NULL: the
 * call waits itself; for the results that the library allocates, a work is needed. */
#ifndef TUTTI_H_
#define TUTTI_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Ranks that act together. */
typedef struct tutti_comm* tutti_comm_t;
/* An operation under way. */
typedef struct tutti_work* tutti_work_t;
/* By which ranks that are threads meet. */
typedef struct tutti_store* tutti_store_t;
/* A name that was looked up once. */
typedef struct tutti_name* tutti_name_t;
/* Gradients in memory of the library. */
typedef struct tutti_arena* tutti_arena_t;
/* Memory of the library that the ranks of a host reach. */
typedef struct tutti_region* tutti_region_t;
/* Where a function of the program's store puts a value. */
typedef struct tutti_value* tutti_value_t;
/* Bytes of other ranks, in memory of the library. */
typedef struct tutti_bytes* tutti_bytes_t;

/* What a call gives. */
enum tutti_status {
  TUTTI_OK = 0,
  TUTTI_INVALID_ARGUMENT = 1, /* the caller's own mistake, seen without asking another rank */
  TUTTI_MISMATCH = 2,         /* ranks disagree; the same text on every rank */
  TUTTI_DUPLICATE_NAME = 3,   /* the name is already pending */
  TUTTI_TIMEOUT = 4,          /* a deadline passed */
  TUTTI_PEER_LOST = 5,        /* a rank died */
  TUTTI_PEER_SILENT = 6,      /* a rank does not answer */
  TUTTI_PEER_LEFT = 7,        /* a rank left while it was needed */
  TUTTI_CLOSED = 8,           /* use after close, or after a fork */
  TUTTI_AUTHENTICATION = 9,   /* wrong job secret or foreign user */
  TUTTI_VERSION = 10,         /* peers of another version */
  TUTTI_UNAVAILABLE = 11,     /* a backend, device or address is not there */
  TUTTI_IO = 12,              /* the operating system refused */
  TUTTI_CORRUPT_DATA = 13,    /* a damaged file or frame */
  TUTTI_OUT_OF_MEMORY = 14,
  TUTTI_CALLBACK = 15, /* a callback of the program threw, or waited */
  TUTTI_INTERNAL = 16  /* the library's own mistake */
};

/* Types of elements. */
enum tutti_dtype {
  TUTTI_F64 = 0,
  TUTTI_F32 = 1,
  TUTTI_F16 = 2,
  TUTTI_BF16 = 3,
  TUTTI_I8 = 4,
  TUTTI_I16 = 5,
  TUTTI_I32 = 6,
  TUTTI_I64 = 7,
  TUTTI_U8 = 8,
  TUTTI_U16 = 9,
  TUTTI_U32 = 10,
  TUTTI_U64 = 11,
  TUTTI_BOOL = 12,
  TUTTI_RAW = 13 /* bytes that mean something to the program alone: only moved, never reduced */
};

/* What a reduction does. */
enum tutti_op {
  TUTTI_SUM = 0,
  TUTTI_AVERAGE = 1,
  TUTTI_MIN = 2,
  TUTTI_MAX = 3,
  TUTTI_PRODUCT = 4,
  TUTTI_BAND = 5,
  TUTTI_BOR = 6,
  TUTTI_BXOR = 7
};

/* Where memory lies. */
enum tutti_device { TUTTI_CPU = 0, TUTTI_CUDA = 1 };

/* Of a tensor. */
#define TUTTI_MAX_DIMENSIONS 8

/* A borrowed, dense, row-major tensor. */
typedef struct tutti_tensor {
  void* data;                          /* borrowed; NULL only if there are no elements */
  int32_t dtype;                       /* enum tutti_dtype */
  int32_t dimensions;                  /* 0 (a scalar) to TUTTI_MAX_DIMENSIONS */
  int64_t shape[TUTTI_MAX_DIMENSIONS]; /* extents, of which `dimensions` count */
  int32_t device;                      /* enum tutti_device */
  int32_t device_index;                /* from 0, among the device's kind */
  void* stream;                        /* the device's stream on which the contents become ready */
} tutti_tensor_t;

static inline tutti_tensor_t tutti_vector(void* data, int64_t count, int dtype) {
  tutti_tensor_t tensor = {data, dtype, 1, {count}, TUTTI_CPU, 0, NULL};
  return tensor;
}

static inline tutti_tensor_t tutti_matrix(void* data, int64_t rows, int64_t columns, int dtype) {
  tutti_tensor_t tensor = {data, dtype, 2, {rows, columns}, TUTTI_CPU, 0, NULL};
  return tensor;
}

/* Bytes of its elements; -1 for a tensor that is none. */
int64_t tutti_tensor_bytes(const tutti_tensor_t* tensor);

/* What a reduction does beside adding up. Start from TUTTI_REDUCE_OPTIONS. */
typedef struct tutti_reduce_options {
  size_t struct_size; /* of this program's headers */
  int32_t op;         /* enum tutti_op */
  int32_t wire;       /* a float dtype, as TUTTI_F16: how floats travel; -1: as they are */
  double prescale;    /* applied before the reduction */
  double postscale;   /* applied after it */
  int32_t priority;   /* higher goes first among what is ready at once */
  int32_t reserved;   /* zero */
} tutti_reduce_options_t;

/* The mean, as it is: what reduce options begin as. */
#define TUTTI_REDUCE_OPTIONS \
  { sizeof(tutti_reduce_options_t), TUTTI_AVERAGE, -1, 1.0, 1.0, 0, 0 }

/* --- errors --- */

/* The last failure of this thread: its line, the rank (-1: none) and tensor ("": none) that it is
 * about. Good until the thread's next failure. */
const char* tutti_last_error(void);
/* -1: none. */
int tutti_last_error_rank(void);
/* "": none. */
const char* tutti_last_error_tensor(void);
/* Keeps a failure of the program's own as this thread's last: what a callback of the program's says
 * of it. Returns `status`. */
int tutti_fail(int status, const char* text);
/* "peer lost" and so on. */
const char* tutti_status_name(int status);
/* Of the library: "0.1.0". */
const char* tutti_version(void);

/* --- communicators --- */

/* Finds the other ranks by what the launcher says; alone it is one rank. */
int tutti_create(tutti_comm_t* comm);
/* The same with settings of the program's own, which come before the environment: "fusion_bytes=1M"
 * sets what the variable TUTTI_FUSION_BYTES would. */
int tutti_create_with(const char* const* settings, size_t count, tutti_comm_t* comm);
/* One of `size` ranks that are threads of this process and share the store. */
int tutti_create_thread(int rank, int size, tutti_store_t store, const char* const* settings,
                        size_t count, tutti_comm_t* comm);
/* One of `size` ranks that are processes and meet in a store of the program's own. The variables
 * TUTTI_... count too, but for those that a launcher sets. Without TUTTI_SECRET the first rank
 * leaves a random secret in the store. */
int tutti_create_in_store(int rank, int size, tutti_store_t store, const char* const* settings,
                          size_t count, tutti_comm_t* comm);
/* For ranks that are threads of this process. */
int tutti_store_create_memory(tutti_store_t* store);
/* Communicators that were made with it keep what they need of it. NULL is fine. */
void tutti_store_destroy(tutti_store_t store);

/* A store over the program's own: where ranks meet, such as a database or another library's store.
 * Keys are texts of up to 1 KiB, values bytes of up to 1 MiB. Any thread calls these, the library's
 * own too, several at once; they must be quick, but for `wait`. Each returns 0, or another number
 * if it failed, and may say why by tutti_fail() before: the call that needed it then fails with
 * TUTTI_UNAVAILABLE. Set struct_size, get, compare_set and add; set and wait are made of these
 * where they are NULL. */
typedef struct tutti_store_functions {
  size_t struct_size; /* sizeof(tutti_store_functions_t) */
  void* context;      /* given to each of them */
  /* Calls tutti_value_set if the key is there. Does not wait. */
  int (*get)(void* context, const char* key, tutti_value_t value);
  /* Atomically: sets the key to `desired` if its value is `expected` (NULL: if it is not there).
   * Calls tutti_value_set with what then stands. */
  int (*compare_set)(void* context, const char* key, const void* expected, size_t expected_size,
                     const void* desired, size_t desired_size, tutti_value_t value);
  /* Sets the key, whatever stood there. */
  int (*set)(void* context, const char* key, const void* value, size_t size);
  /* Atomically adds to a counter that starts at 0; `get` gives its decimal digits. */
  int (*add)(void* context, const char* key, int64_t amount, int64_t* sum);
  /* Waits for a key and calls tutti_value_set, unless the seconds pass before. */
  int (*wait)(void* context, const char* key, double seconds, tutti_value_t value);
  int (*erase)(void* context, const char* key);        /* NULL: keys stay */
  int (*erase_all)(void* context, const char* prefix); /* NULL: keys stay */
  /* Nothing uses the store any more; may be NULL. A call that takes longer than 0.3 s may outlast
   * the communicator that made it, but not this. */
  void (*destroy)(void* context);
} tutti_store_functions_t;

/* Copies the functions; `store` is for tutti_create_in_store(). */
int tutti_store_create(const tutti_store_functions_t* functions, tutti_store_t* store);
/* In one of the functions only. */
int tutti_value_set(tutti_value_t value, const void* bytes, size_t size);

/* Says goodbye; what is pending and later calls fail with TUTTI_CLOSED. Any thread, also while
 * others use the communicator or wait, which is what other libraries call abort; again is fine. The
 * other ranks get TUTTI_PEER_LEFT where they need this one. It is still to be destroyed. */
int tutti_close(tutti_comm_t comm);
/* The same, because of an error, which `error` tells in the program's words (one line, of which 400
 * bytes count): the other ranks' error texts show it, and tutti-run names this rank as the one that
 * failed first. NULL or "": tutti_close(). */
int tutti_close_because(tutti_comm_t comm, const char* error);
/* tutti_close(), and gives the handle back. NULL is fine. */
void tutti_destroy(tutti_comm_t comm);

/* -1 and an error text if comm is NULL. */
int tutti_rank(tutti_comm_t comm);
/* How many ranks there are; -1 and an error text if comm is NULL. */
int tutti_size(tutti_comm_t comm);
/* Among the ranks of this host. */
int tutti_local_rank(tutti_comm_t comm);
/* Ranks on this host. */
int tutti_local_size(tutti_comm_t comm);
/* On how many hosts the ranks are. */
int tutti_hosts(tutti_comm_t comm);
/* "shm" and so on, good until comm is destroyed; NULL if comm is. */
const char* tutti_backend(tutti_comm_t comm);

/* Collective: the ranks of one color, ordered by (key, rank); a negative color gets NULL. */
int tutti_split(tutti_comm_t comm, int color, int key, tutti_comm_t* part);
/* After a loss: the survivors, in old order. The old communicator is then only to be destroyed. */
int tutti_shrink(tutti_comm_t comm, double seconds, tutti_comm_t* survivors);

/* --- operations --- */

/* --- the blocking fast path --- */

/* For what the program waits for anyway, such as a loss: in shared memory nothing is negotiated and
 * no thread is woken, and a small one takes about a microsecond instead of some five. For that
 * every rank makes these calls, whatever their kinds, in one order, as with MPI; ranks whose calls
 * differ in kind, name, count, dtype, op, root or rows all get TUTTI_MISMATCH. Every other call
 * without a `work` waits too, but is matched by name like those with one.
 * `rows`: the same list of one number a rank on all ranks, or NULL for equal parts. */
int tutti_allreduce_blocking(tutti_comm_t comm, const char* name, const tutti_tensor_t* tensor,
                             int op);
/* Out of place; the input is only read. */
int tutti_allreduce_blocking_with(tutti_comm_t comm, const char* name, const tutti_tensor_t* input,
                                  const tutti_tensor_t* output, int op);
/* The same for one number, in place. */
int tutti_allreduce_value(tutti_comm_t comm, const char* name, double* value, int op);
/* In place: root's contents to all. */
int tutti_broadcast_blocking(tutti_comm_t comm, const char* name, const tutti_tensor_t* tensor,
                             int root);
/* The output counts at root only, may be NULL elsewhere, and may be the input. */
int tutti_reduce_blocking(tutti_comm_t comm, const char* name, const tutti_tensor_t* input,
                          const tutti_tensor_t* output, int root, int op);
/* The ranks' rows one after another; the input may be this rank's part of the output. */
int tutti_allgather_blocking(tutti_comm_t comm, const char* name, const tutti_tensor_t* input,
                             const tutti_tensor_t* output, const int64_t* rows);
/* The same at root only; the output may be NULL elsewhere. */
int tutti_gather_blocking(tutti_comm_t comm, const char* name, const tutti_tensor_t* input,
                          const tutti_tensor_t* output, int root, const int64_t* rows);
/* The input counts at root only and may be NULL elsewhere. */
int tutti_scatter_blocking(tutti_comm_t comm, const char* name, const tutti_tensor_t* input,
                           const tutti_tensor_t* output, int root, const int64_t* rows);
/* This rank's share of the reduced rows. */
int tutti_reduce_scatter_blocking(tutti_comm_t comm, const char* name, const tutti_tensor_t* input,
                                  const tutti_tensor_t* output, int op, const int64_t* rows);
/* Equal parts of the rows to every rank. */
int tutti_alltoall_blocking(tutti_comm_t comm, const char* name, const tutti_tensor_t* input,
                            const tutti_tensor_t* output);
/* Returns when all ranks came. */
int tutti_barrier_blocking(tutti_comm_t comm);
/* Point to point: the n-th of these sends from one rank to another meets the n-th of these receives
 * there, by the same name. A send may last until the other rank receives. */
int tutti_send_blocking(tutti_comm_t comm, const char* name, const tutti_tensor_t* tensor, int to);
/* The other side: fills the tensor, of the dtype and as many elements as rank `from` sends. */
int tutti_recv_blocking(tutti_comm_t comm, const char* name, const tutti_tensor_t* tensor,
                        int from);
/* Both at the same time, as MPI_Sendrecv. The two have names of their own and share no memory. If
 * either fails, the error comes when both are over. */
int tutti_sendrecv_blocking(tutti_comm_t comm, const char* send_name, const tutti_tensor_t* input,
                            int to, const char* recv_name, const tutti_tensor_t* output, int from);

/* --- bytes, waited for and matched by name --- */

/* Root's bytes to all, of whatever number: what the others give counts nothing and may be NULL. One
 * part. The result is to be released. NULL for bytes at the root is an error on every rank. */
int tutti_broadcast_bytes(tutti_comm_t comm, const char* name, const void* bytes, size_t size,
                          int root, tutti_bytes_t* result);
/* The bytes of every rank to all, one part a rank. The result is to be released. */
int tutti_allgather_bytes(tutti_comm_t comm, const char* name, const void* bytes, size_t size,
                          tutti_bytes_t* result);
/* How many parts there are; 0 if bytes is NULL. */
size_t tutti_bytes_parts(tutti_bytes_t bytes);
/* A part and its size, good until they are released; NULL and an error text for a part that is not
 * there. `size` may be NULL. */
const void* tutti_bytes_part(tutti_bytes_t bytes, size_t part, size_t* size);
/* NULL is fine. */
void tutti_bytes_release(tutti_bytes_t bytes);

/* --- matched by name --- */

/* Looks a name up once, for loops over many small tensors. Shape and dtype are `like`'s, whose data
 * may be NULL. The handle is the communicator's and dies with it; asked for again, it is the same.
 */
int tutti_declare(tutti_comm_t comm, const char* name, const tutti_tensor_t* like,
                  tutti_name_t* handle);
/* In place. `options`: NULL for the mean. */
int tutti_allreduce_declared(tutti_comm_t comm, tutti_name_t handle, const tutti_tensor_t* tensor,
                             const tutti_reduce_options_t* options, tutti_work_t* work);

/* All other kinds by a handle, into the caller's memory. The input must have the declared shape,
 * or, of kinds that know no rows, as many elements. */
/* See tutti_allgather_into. */
int tutti_allgather_declared(tutti_comm_t comm, tutti_name_t handle, const tutti_tensor_t* input,
                             const tutti_tensor_t* output, tutti_work_t* work);
/* See tutti_broadcast. */
int tutti_broadcast_declared(tutti_comm_t comm, tutti_name_t handle, const tutti_tensor_t* tensor,
                             int root, tutti_work_t* work);
/* See tutti_reduce. */
int tutti_reduce_declared(tutti_comm_t comm, tutti_name_t handle, const tutti_tensor_t* input,
                          const tutti_tensor_t* output, int root, int op, tutti_work_t* work);
/* See tutti_gather_into. */
int tutti_gather_declared(tutti_comm_t comm, tutti_name_t handle, const tutti_tensor_t* input,
                          const tutti_tensor_t* output, int root, tutti_work_t* work);
/* See tutti_scatter_into. */
int tutti_scatter_declared(tutti_comm_t comm, tutti_name_t handle, const tutti_tensor_t* input,
                           const tutti_tensor_t* output, int root, const int64_t* rows,
                           tutti_work_t* work);
/* See tutti_reduce_scatter_into. */
int tutti_reduce_scatter_declared(tutti_comm_t comm, tutti_name_t handle,
                                  const tutti_tensor_t* input, const tutti_tensor_t* output,
                                  const tutti_reduce_options_t* options, const int64_t* rows,
                                  tutti_work_t* work);
/* See tutti_alltoall_into. */
int tutti_alltoall_declared(tutti_comm_t comm, tutti_name_t handle, const tutti_tensor_t* input,
                            const tutti_tensor_t* output, const int64_t* splits,
                            tutti_work_t* work);
/* See tutti_send. */
int tutti_send_declared(tutti_comm_t comm, tutti_name_t handle, const tutti_tensor_t* tensor,
                        int to, tutti_work_t* work);
/* See tutti_recv. */
int tutti_recv_declared(tutti_comm_t comm, tutti_name_t handle, const tutti_tensor_t* tensor,
                        int from, tutti_work_t* work);
/* See tutti_barrier. */
int tutti_barrier_declared(tutti_comm_t comm, tutti_name_t handle, tutti_work_t* work);

/* In place. */
int tutti_allreduce(tutti_comm_t comm, const char* name, const tutti_tensor_t* tensor, int op,
                    tutti_work_t* work);
/* From input to output, which may be the same. */
int tutti_allreduce_with(tutti_comm_t comm, const char* name, const tutti_tensor_t* input,
                         const tutti_tensor_t* output, const tutti_reduce_options_t* options,
                         tutti_work_t* work);
/* All or none: no member is reduced before every member is there on every rank. */
int tutti_grouped_allreduce(tutti_comm_t comm, const char* group, const char* const* names,
                            const tutti_tensor_t* tensors, size_t count,
                            const tutti_reduce_options_t* options, tutti_work_t* work);
/* The same out of place; inputs are only read. */
int tutti_grouped_allreduce_with(tutti_comm_t comm, const char* group, const char* const* names,
                                 const tutti_tensor_t* inputs, const tutti_tensor_t* outputs,
                                 size_t count, const tutti_reduce_options_t* options,
                                 tutti_work_t* work);
/* In place: root's contents to all. */
int tutti_broadcast(tutti_comm_t comm, const char* name, const tutti_tensor_t* tensor, int root,
                    tutti_work_t* work);
/* Root's input, which may be NULL elsewhere and is only read, to the outputs of all. */
int tutti_broadcast_with(tutti_comm_t comm, const char* name, const tutti_tensor_t* input,
                         const tutti_tensor_t* output, int root, tutti_work_t* work);
/* The output counts at root only and may be NULL elsewhere. */
int tutti_reduce(tutti_comm_t comm, const char* name, const tutti_tensor_t* input,
                 const tutti_tensor_t* output, int root, int op, tutti_work_t* work);

/* The result is the work's output 0; its first extent is known when it is done. */
int tutti_allgather(tutti_comm_t comm, const char* name, const tutti_tensor_t* input,
                    tutti_work_t* work);
/* The same into the caller's memory, whose rows must be the sum of all. */
int tutti_allgather_into(tutti_comm_t comm, const char* name, const tutti_tensor_t* input,
                         const tutti_tensor_t* output, tutti_work_t* work);
/* Output i is that of tensor i. */
int tutti_grouped_allgather(tutti_comm_t comm, const char* group, const char* const* names,
                            const tutti_tensor_t* tensors, size_t count, tutti_work_t* work);
/* Into the caller's memory: tensor i of each list belongs together. */
int tutti_grouped_allgather_into(tutti_comm_t comm, const char* group, const char* const* names,
                                 const tutti_tensor_t* inputs, const tutti_tensor_t* outputs,
                                 size_t count, tutti_work_t* work);
/* The sum (or average) of sparse rows: `indices` i64[k], `values` [k, ...]. Output 0 the indices,
 * output 1 the values of all ranks in rank order; equal indices are not merged. */
int tutti_sparse_allreduce(tutti_comm_t comm, const char* name, const tutti_tensor_t* indices,
                           const tutti_tensor_t* values, int op, tutti_work_t* work);
/* Output at root; no rows elsewhere. */
int tutti_gather(tutti_comm_t comm, const char* name, const tutti_tensor_t* input, int root,
                 tutti_work_t* work);
/* The input counts at root only and may be NULL elsewhere. `rows`: one number a rank, or NULL for
 * equal parts. */
int tutti_scatter(tutti_comm_t comm, const char* name, const tutti_tensor_t* input, int root,
                  const int64_t* rows, tutti_work_t* work);
/* Output 0 is this rank's share of the rows; `rows` deals them, NULL: equal parts. */
int tutti_reduce_scatter(tutti_comm_t comm, const char* name, const tutti_tensor_t* input,
                         const tutti_reduce_options_t* options, const int64_t* rows,
                         tutti_work_t* work);
/* In equal parts; output i is that of tensor i. */
int tutti_grouped_reduce_scatter(tutti_comm_t comm, const char* group, const char* const* names,
                                 const tutti_tensor_t* tensors, size_t count,
                                 const tutti_reduce_options_t* options, tutti_work_t* work);
/* Into the caller's memory. */
int tutti_grouped_reduce_scatter_into(tutti_comm_t comm, const char* group,
                                      const char* const* names, const tutti_tensor_t* inputs,
                                      const tutti_tensor_t* outputs, size_t count,
                                      const tutti_reduce_options_t* options, tutti_work_t* work);
/* `splits`: rows to each rank, or NULL for equal parts. */
int tutti_alltoall(tutti_comm_t comm, const char* name, const tutti_tensor_t* input,
                   const int64_t* splits, tutti_work_t* work);

/* The last four into the caller's memory, whose rows must be as many as come; gather: at root. */
int tutti_gather_into(tutti_comm_t comm, const char* name, const tutti_tensor_t* input,
                      const tutti_tensor_t* output, int root, tutti_work_t* work);
/* See tutti_gather_into. */
int tutti_scatter_into(tutti_comm_t comm, const char* name, const tutti_tensor_t* input,
                       const tutti_tensor_t* output, int root, const int64_t* rows,
                       tutti_work_t* work);
/* See tutti_gather_into. */
int tutti_reduce_scatter_into(tutti_comm_t comm, const char* name, const tutti_tensor_t* input,
                              const tutti_tensor_t* output, const tutti_reduce_options_t* options,
                              const int64_t* rows, tutti_work_t* work);
/* See tutti_gather_into. */
int tutti_alltoall_into(tutti_comm_t comm, const char* name, const tutti_tensor_t* input,
                        const tutti_tensor_t* output, const int64_t* splits, tutti_work_t* work);

/* Matched by name between the two ranks. */
int tutti_send(tutti_comm_t comm, const char* name, const tutti_tensor_t* tensor, int to,
               tutti_work_t* work);
/* Into the tensor, whose dtype and count are the sender's. */
int tutti_recv(tutti_comm_t comm, const char* name, const tutti_tensor_t* tensor, int from,
               tutti_work_t* work);
/* From whichever rank sends this name here; tutti_work_source() says which. Of several sends one is
 * taken, the others wait for the next receive. */
int tutti_recv_any(tutti_comm_t comm, const char* name, const tutti_tensor_t* tensor,
                   tutti_work_t* work);
/* Done when all ranks came. */
int tutti_barrier(tutti_comm_t comm, const char* name, tutti_work_t* work);
/* This rank is out of data: the others' averages divide by those that are left. Done when all have
 * joined; output 0 is an i64 scalar, the last rank to join. */
int tutti_join(tutti_comm_t comm, tutti_work_t* work);

/* --- works --- */

/* Gives the operation's own status; may be called again. */
int tutti_work_wait(tutti_work_t work);
/* TUTTI_TIMEOUT when the seconds pass; the operation goes on. */
int tutti_work_wait_for(tutti_work_t work, double seconds);
/* 1 or 0; -1 if work is NULL. Never blocks. */
int tutti_work_done(tutti_work_t work);
/* Makes a stream of a device wait instead of the host; the first time for a name the host waits
 * too. Of host memory it is tutti_work_wait. Errors are seen by tutti_work_wait. */
int tutti_work_wait_on(tutti_work_t work, void* stream);
/* Calls callback(context, status) once when the operation is over: at once and on this thread if it
 * is, else on a thread of the communicator's own, one after another. Unless status is TUTTI_OK,
 * tutti_last_error() has its text there. No wait inside it (TUTTI_CALLBACK). If this call fails the
 * callback never comes. Good after tutti_work_release too. */
int tutti_work_then(tutti_work_t work, void (*callback)(void* context, int status), void* context);
/* Waits; the memory is good until the work is released. */
int tutti_work_output(tutti_work_t work, size_t index, tutti_tensor_t* output);
/* Waits; rows that came from each rank (allgather, alltoall). Writes at most `capacity` numbers and
 * the whole number of them into *count. */
int tutti_work_received(tutti_work_t work, int64_t* rows, size_t capacity, size_t* count);
/* Waits; of a receive: the rank that sent; -1 of anything else. */
int tutti_work_source(tutti_work_t work, int* source);
/* Does not cancel. NULL is fine. */
void tutti_work_release(tutti_work_t work);

/* --- memory that the ranks of a host reach --- */

/* Zeroed memory, 4096-byte aligned, that collectives read and write where it is if the backend
 * shares memory. This rank's own business: ranks need not ask alike. */
int tutti_allocate(tutti_comm_t comm, int64_t bytes, tutti_region_t* region);
/* NULL and an error text if region is NULL. */
void* tutti_region_data(tutti_region_t region);
/* What another process, or a device's library, needs to map it. Set struct_size first. */
typedef struct tutti_region_handle {
  size_t struct_size; /* of this program's headers */
  int32_t kind;       /* 0: nobody can; 1: threads of this process; 2: who gets the descriptor */
  int32_t descriptor; /* borrowed from the region; -1: none */
  uint64_t offset;    /* kind 1: the address; kind 2: in the descriptor's file, in bytes */
  uint64_t bytes;     /* from there on */
} tutti_region_handle_t;
/* Fills what fits. */
int tutti_region_export(tutti_region_t region, tutti_region_handle_t* handle);
/* An operation that uses it and is pending fails on this rank with TUTTI_INVALID_ARGUMENT; the
 * memory stays until it is over. NULL is fine. May come after tutti_destroy(). */
void tutti_region_free(tutti_region_t region);

/* --- arenas --- */

/* Gradient arrays in one block of the library's memory, for a trainer that keeps no arrays of its
 * own: where the ranks share memory, each reduces its part of every array straight in the arenas of
 * all, and nothing is packed or copied. Start from TUTTI_ARRAY, and set what is said before its
 * strides; the rest may stay as it is. */
typedef struct tutti_array {
  size_t struct_size;                  /* of this program's headers */
  const char* name;                    /* matched over the ranks; copied */
  int32_t dtype;                       /* enum tutti_dtype */
  int32_t dimensions;                  /* 0 to TUTTI_MAX_DIMENSIONS */
  int64_t shape[TUTTI_MAX_DIMENSIONS]; /* extents, of which `dimensions` count */
  const int64_t* strides;  /* in elements, one a dimension, of a dense layout; NULL: row-major */
  int32_t device;          /* enum tutti_device, one for all; TUTTI_CUDA: peer or nccl only */
  int32_t device_index;    /* from 0, among the device's kind */
  int32_t may_be_left_out; /* 1: see tutti_arena_leave_out */
  int32_t reserved;        /* 0 */
} tutti_array_t;

/* A scalar of f32: what an array of an arena begins as. */
#define TUTTI_ARRAY \
  { sizeof(tutti_array_t), NULL, TUTTI_F32, 0, {0}, NULL, TUTTI_CPU, 0, 0, 0 }

/* Every rank makes the same arenas in the same order. Texts and numbers are copied. The arrays
 * begin as zeros. `options`: NULL for the mean. The arena must be destroyed before its
 * communicator. */
int tutti_arena_create(tutti_comm_t comm, const tutti_array_t* arrays, size_t count,
                       const tutti_reduce_options_t* options, tutti_arena_t* arena);
/* Waits for what is on its way. NULL is fine. */
void tutti_arena_destroy(tutti_arena_t arena);
/* An array's memory, 64-byte aligned, good until the arena is destroyed. Its strides are those that
 * it was described with. */
int tutti_arena_array(tutti_arena_t arena, const char* name, tutti_tensor_t* array);
/* This rank's gradient is complete, on a device once its default stream comes to where it is now:
 * starts its reduction; not to be written before tutti_arena_wait. Any order, any thread. */
int tutti_arena_ready(tutti_arena_t arena, const char* name);
/* This rank has no gradient of this array in this step: instead of tutti_arena_ready. The array
 * takes part with zeros, and averages still divide by all ranks. Only for one that
 * may_be_left_out, of a sum or an average. */
int tutti_arena_leave_out(tutti_arena_t arena, const char* name);
/* Every array holds its result, and a new step begins. TUTTI_INVALID_ARGUMENT names an array that
 * was neither ready nor left out; it can still be. */
int tutti_arena_wait(tutti_arena_t arena);
/* The same, for so many seconds: then TUTTI_TIMEOUT and *goes_on (may be NULL) is 1, which it else
 * is not: the step is still open, and may be waited for again. */
int tutti_arena_wait_for(tutti_arena_t arena, double seconds, int* goes_on);
/* *used: 1 if any rank had this array in the last step, 0 if all left it out. */
int tutti_arena_used(tutti_arena_t arena, const char* name, int* used);

/* --- statistics --- */

/* Since the communicator was made. Set struct_size first: the library fills as much as fits. */
typedef struct tutti_statistics {
  size_t struct_size;            /* of this program's headers */
  uint64_t operations;           /* works and blocking calls that ended */
  uint64_t tensors;              /* of allreduces; a blocking call in shared memory is one */
  uint64_t buckets;              /* fused buckets, and other replayed operations, launched */
  uint64_t replayed_buckets;     /* of these, without negotiation */
  uint64_t vetoed_buckets;       /* replayed ones that were dropped and renegotiated */
  uint64_t data_messages;        /* sent by this rank, as are the following three */
  uint64_t data_bytes;           /* in them */
  uint64_t control_messages;     /* negotiation, and the transport's own */
  uint64_t control_bytes;        /* in them */
  uint64_t wakeups;              /* of the background thread */
  uint64_t allocations;          /* on the data path */
  double wait_seconds;           /* that callers spent waiting */
  double exposed_seconds;        /* of these, while data moved */
  double skew_seconds;           /* of these, while other ranks were still missing */
  uint64_t plans_locked;         /* how often replay began */
  uint64_t predicted_messages;   /* of the replayed buckets, by what their plan says beforehand */
  uint64_t predicted_bytes;      /* in them */
  uint64_t negotiation_messages; /* sent by this rank: requests and responses alone */
  uint64_t caller_runs;          /* waits that drove the engine themselves */
  uint64_t copied_bytes;         /* of data, into and out of the slots of shared memory */
} tutti_statistics_t;

/* Of this rank. */
int tutti_get_statistics(tutti_comm_t comm, tutti_statistics_t* statistics);
/* Bytes of the messages that this rank sent to each rank, control and framing included; what ranks
 * read in each other's memory is not among them. Writes at most `capacity` numbers and the whole
 * number of them into *count. */
int tutti_get_bytes_to_peers(tutti_comm_t comm, uint64_t* bytes, size_t capacity, size_t* count);

/* A Chrome trace of what the ranks do. Every rank stops it; rank 0 then writes the file. */
int tutti_start_timeline(tutti_comm_t comm, const char* file);
/* See tutti_start_timeline(). */
int tutti_stop_timeline(tutti_comm_t comm);
/* A span of the program's own in the timeline, in seconds of CLOCK_MONOTONIC. Nothing if there is
 * no timeline. */
int tutti_timeline_span(tutti_comm_t comm, const char* name, double begin, double end);

#ifdef __cplusplus
}
#endif

#endif /* TUTTI_H_ */
