/* Tutti for C, and for every language that can call C: <tutti.h>.
 *
 *   tutti_comm_t comm;
 *   if (tutti_create(&comm) != TUTTI_OK) return puts(tutti_last_error()), 1;
 *   tutti_tensor_t gradient = tutti_vector(memory, count, TUTTI_F32);
 *   tutti_allreduce(comm, "gradient", &gradient, TUTTI_AVERAGE, NULL);
 *   tutti_destroy(comm);
 *
 * Every call that returns int returns TUTTI_OK or another status. After another status,
 * tutti_last_error() describes in one line what went wrong. Any thread may call. Operations are
 * matched by name over all ranks, and ranks may submit them in any order.
 *
 * Structs that may grow in later versions begin with struct_size, the size of the struct in the
 * program's header. Fields that an older program does not have keep the value of the struct's
 * initializer. Fields of a newer program that this library does not know must be zero.
 *
 * A tutti_call_t describes an operation of any kind; some kinds have short forms. `work` receives a
 * handle of the operation, which the caller waits for and releases. The tensors' memory belongs to
 * the operation until it is done; all else that a call points to is copied. If `work` is NULL, the
 * call itself waits. Operations whose results the library allocates need a `work`. */
#ifndef TUTTI_H_
#define TUTTI_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Ranks that communicate with each other. */
typedef struct tutti_comm* tutti_comm_t;
/* An operation under way. */
typedef struct tutti_work* tutti_work_t;
/* A store through which ranks that are threads find each other. */
typedef struct tutti_store* tutti_store_t;
/* A tensor name that was looked up once. */
typedef struct tutti_name* tutti_name_t;
/* Gradients in the library's memory. */
typedef struct tutti_arena* tutti_arena_t;
/* Memory of the library that all ranks of a host can access. */
typedef struct tutti_region* tutti_region_t;
/* Receives a value from a function of the program's store. */
typedef struct tutti_value* tutti_value_t;
/* Bytes of other ranks, in the library's memory. */
typedef struct tutti_bytes* tutti_bytes_t;

/* The results of calls. */
enum tutti_status {
  TUTTI_OK = 0,
  TUTTI_INVALID_ARGUMENT = 1, /* a mistake of the caller, found without asking other ranks */
  TUTTI_MISMATCH = 2,         /* ranks disagree; every rank gets the same text */
  TUTTI_DUPLICATE_NAME = 3,   /* the name is already pending */
  TUTTI_TIMEOUT = 4,          /* a deadline passed */
  TUTTI_PEER_LOST = 5,        /* a rank's process or connection ended */
  TUTTI_PEER_SILENT = 6,      /* a rank does not answer */
  TUTTI_PEER_LEFT = 7,        /* a rank left while it was needed */
  TUTTI_CLOSED = 8,           /* use after close, or after a fork */
  TUTTI_AUTHENTICATION = 9,   /* wrong job secret or foreign user */
  TUTTI_VERSION = 10,         /* peers of another version */
  TUTTI_UNAVAILABLE = 11,     /* a backend, device or address is not available */
  TUTTI_IO = 12,              /* the operating system refused */
  TUTTI_CORRUPT_DATA = 13,    /* a damaged file or frame */
  TUTTI_OUT_OF_MEMORY = 14,
  TUTTI_CALLBACK = 15, /* a callback of the program threw, or waited */
  TUTTI_INTERNAL = 16  /* a mistake of the library */
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
  TUTTI_RAW = 13 /* opaque bytes, which can be moved but not reduced */
};

/* Reduction operators. */
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

/* The kinds of device whose memory a tensor can use. */
enum tutti_device { TUTTI_CPU = 0, TUTTI_CUDA = 1 };

/* The largest number of dimensions of a tensor. */
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

/* Returns the bytes of the tensor's elements, or -1 if the tensor is invalid. */
int64_t tutti_tensor_bytes(const tutti_tensor_t* tensor);

/* Options of a reduction. Start from TUTTI_REDUCE_OPTIONS. */
typedef struct tutti_reduce_options {
  size_t struct_size; /* sizeof(tutti_reduce_options_t) */
  int32_t op;         /* enum tutti_op */
  int32_t wire;       /* dtype in which floats are sent, such as TUTTI_F16; -1: their own */
  double prescale;    /* applied before the reduction */
  double postscale;   /* applied after the reduction */
  int32_t priority;   /* ready operations of higher priority go first */
  int32_t reserved;   /* zero */
} tutti_reduce_options_t;

/* The default options: the mean, without scaling and with the tensor's own dtype on the wire. */
#define TUTTI_REDUCE_OPTIONS \
  { sizeof(tutti_reduce_options_t), TUTTI_AVERAGE, -1, 1.0, 1.0, 0, 0 }

/* --- errors --- */

/* Returns the text of this thread's last failure, one line, valid until its next failure. */
const char* tutti_last_error(void);
/* Returns the rank that this thread's last failure is about, or -1 if it is about none. */
int tutti_last_error_rank(void);
/* Returns the name of the tensor that this thread's last failure is about, or "". */
const char* tutti_last_error_tensor(void);
/* Makes a failure of the program's own this thread's last failure. A callback of the program uses
 * it to describe why it failed. Returns `status`. */
int tutti_fail(int status, const char* text);
/* Returns the name of a status, such as "peer lost". */
const char* tutti_status_name(int status);
/* Returns the version of the library, such as "0.1.0". */
const char* tutti_version(void);

/* --- communicators --- */

/* Finds the other ranks by the launcher's variables. Without a launcher there is one rank. */
int tutti_create(tutti_comm_t* comm);
/* Like tutti_create(), with settings that override the environment. "fusion_bytes=1M" sets what the
 * variable TUTTI_FUSION_BYTES would set. */
int tutti_create_with(const char* const* settings, size_t count, tutti_comm_t* comm);
/* Creates one of `size` ranks that are threads of this process and share the store. */
int tutti_create_thread(int rank, int size, tutti_store_t store, const char* const* settings,
                        size_t count, tutti_comm_t* comm);
/* Creates one of `size` ranks that are processes and find each other through the program's own
 * store. The environment variables TUTTI_... also apply, except those that a launcher sets. Without
 * TUTTI_SECRET the first rank leaves a random secret in the store. */
int tutti_create_in_store(int rank, int size, tutti_store_t store, const char* const* settings,
                          size_t count, tutti_comm_t* comm);
/* Releases the handle. Communicators keep what they need of the store. NULL is allowed. */
void tutti_store_destroy(tutti_store_t store);

/* The functions of a program's own store, through which ranks find each other, such as a database
 * or another library's store. Keys are texts of up to 1 KiB, and values are bytes of up to 1 MiB.
 * Any thread of the program or the library may call them, several at the same time. All but `wait`
 * must return quickly. Each returns 0, or another number if it failed. Before it fails it may give
 * the reason by tutti_fail(). The call that used the store then fails with TUTTI_UNAVAILABLE. Set
 * struct_size, get, compare_set and add. If `set` or `wait` is NULL, the library builds it from
 * these three. */
typedef struct tutti_store_functions {
  size_t struct_size; /* sizeof(tutti_store_functions_t) */
  void* context;      /* passed to each function */
  /* Calls tutti_value_set if the key exists. Does not wait. */
  int (*get)(void* context, const char* key, tutti_value_t value);
  /* Atomically sets the key to `desired` if its value is `expected`, or, if `expected` is NULL, if
   * the key does not exist. Calls tutti_value_set with the value after that. */
  int (*compare_set)(void* context, const char* key, const void* expected, size_t expected_size,
                     const void* desired, size_t desired_size, tutti_value_t value);
  /* Sets the key, whatever its value was. */
  int (*set)(void* context, const char* key, const void* value, size_t size);
  /* Atomically adds to a counter that starts at 0. `get` returns the counter in decimal digits. */
  int (*add)(void* context, const char* key, int64_t amount, int64_t* sum);
  /* Waits up to `seconds` for the key. Calls tutti_value_set if the key exists. */
  int (*wait)(void* context, const char* key, double seconds, tutti_value_t value);
  int (*erase)(void* context, const char* key);        /* NULL: keys stay */
  int (*erase_all)(void* context, const char* prefix); /* NULL: keys stay */
  /* Called last, when nothing uses the store; may be NULL. If another function takes longer than
   * 0.3 s, it may outlast its communicator; `destroy` is still called after it. */
  void (*destroy)(void* context);
} tutti_store_functions_t;

/* Makes a store for tutti_create_in_store() of the functions, which are copied. NULL for
 * `functions` makes a store in memory, for tutti_create_thread(). */
int tutti_store_create(const tutti_store_functions_t* functions, tutti_store_t* store);
/* Passes a value to the library. Only the store's functions call it, with their `value`. */
int tutti_value_set(tutti_value_t value, const void* bytes, size_t size);

/* Leaves the communicator. Pending and later calls fail with TUTTI_CLOSED. Any thread may call it,
 * repeatedly, also while others use the communicator or wait (other libraries call this abort). The
 * other ranks get TUTTI_PEER_LEFT where they need this rank. The handle must still be destroyed.
 * If the program leaves because of an error, `error` describes it in one line, of which 400 bytes
 * are used. The other ranks' error texts show it, and tutti-run names this rank as the first that
 * failed. NULL and "" mean that there is no error. */
int tutti_close(tutti_comm_t comm, const char* error);
/* Closes the communicator and releases its handle. NULL is allowed. */
void tutti_destroy(tutti_comm_t comm);

/* Returns this rank, or -1 and an error text if comm is NULL. */
int tutti_rank(tutti_comm_t comm);
/* Returns the number of ranks, or -1 and an error text if comm is NULL. */
int tutti_size(tutti_comm_t comm);
/* Returns this rank's index, from 0, among the ranks of its host. */
int tutti_local_rank(tutti_comm_t comm);
/* Returns the number of ranks on this host. */
int tutti_local_size(tutti_comm_t comm);
/* Returns the number of hosts that the ranks run on. */
int tutti_hosts(tutti_comm_t comm);
/* Returns the backend, such as "shm", valid until comm is destroyed; NULL if comm is NULL. */
const char* tutti_backend(tutti_comm_t comm);

/* Collective. Makes one communicator for the ranks of each color, ordered by (key, rank). A rank
 * with a negative color gets NULL. */
int tutti_split(tutti_comm_t comm, int color, int key, tutti_comm_t* part);
/* Makes a communicator of the survivors after a loss, in their old order. The old communicator can
 * then only be destroyed. */
int tutti_shrink(tutti_comm_t comm, double seconds, tutti_comm_t* survivors);

/* --- calls --- */

/* Kinds of calls, and the fields of a tutti_call_t that each takes. The numbers up to 63 are for
 * kinds of collectives. */
enum tutti_kind {
  /*                             input              | output                  | root | rows | opt */
  TUTTI_ALLREDUCE = 0,        /* values             | result (1)              | -    | -    | all */
  TUTTI_ALLGATHER = 1,        /* own rows           | rows of all ranks (2)   | -    | (3)  | -   */
  TUTTI_BROADCAST = 2,        /* values, at root    | root's values (1)       | root | -    | -   */
  TUTTI_REDUCE = 3,           /* values             | result, at root (1)     | root | -    | op  */
  TUTTI_GATHER = 4,           /* own rows           | all rows, at root (2)   | root | (3)  | -   */
  TUTTI_SCATTER = 5,          /* all rows, at root  | own rows (2)            | root | yes  | -   */
  TUTTI_REDUCE_SCATTER = 6,   /* rows of all ranks  | own rows, reduced (2)   | -    | yes  | all */
  TUTTI_ALLTOALL = 7,         /* rows for each rank | rows from each rank (2) | -    | (4)  | -   */
  TUTTI_SEND = 8,             /* values             | -                       | to   | -    | -   */
  TUTTI_RECV = 9,             /* -                  | values                  | from | -    | -   */
  TUTTI_BARRIER = 10,         /* -                  | -                       | -    | -    | -   */
  TUTTI_JOIN = 64,            /* -                  | -                       | -    | -    | -   */
  TUTTI_SPARSE_ALLREDUCE = 65 /* indices: i64[k]    | -, `values`: [k, ...]   | -    | -    | op  */
};

/* The root of a receive from any rank that sends this name here. */
#define TUTTI_ANY_RANK (-1)

/* Describes a call. Start from TUTTI_CALL(kind) and set the fields that the table above names. A
 * field without a meaning for the kind must be zero or NULL.
 *
 * (1) If the output is NULL or the input, the call is in place. A broadcast in place takes its
 *     tensor as input or as output.
 * (2) The output has exactly as many rows as arrive. If it is NULL, the library allocates output 0
 *     of the work. A gather needs no output on ranks other than root; output 0 has no rows there.
 * (3) Blocking calls take the number of rows of each rank, and the list is the same on all ranks.
 * (4) Started calls take the number of rows for each rank. Blocking calls exchange equal parts.
 *
 * `rows` has one number per rank; NULL means equal parts. NULL for `options` means the mean. Where
 * the table says "op", and in blocking calls, the other options keep their initial values.
 *
 * A send and its receive are matched by name and have the same dtype and number of elements. A
 * receive from TUTTI_ANY_RANK takes one send, whose rank tutti_work_source() returns. A barrier is
 * done when all ranks have called it. A join announces that this rank has no more data; averages
 * then divide by the number of ranks that have not joined. It is done when all have joined, and
 * output 0 is an i64 scalar, the last rank to join. A sparse allreduce sums or averages some rows
 * of a larger tensor. Its outputs 0 and 1 are the indices and values of all ranks, in rank order;
 * equal indices are not merged. */
typedef struct tutti_call {
  size_t struct_size;                    /* sizeof(tutti_call_t) */
  int32_t kind;                          /* enum tutti_kind */
  int32_t root;                          /* root, or the other rank of a send or receive */
  const char* name;                      /* matched over the ranks, or NULL if `handle` is set */
  tutti_name_t handle;                   /* what tutti_declare() returned for the name, or NULL */
  uint64_t order;                        /* reserved, 0 */
  const tutti_tensor_t* input;           /* see the table */
  const tutti_tensor_t* output;          /* see the table */
  const tutti_tensor_t* values;          /* of a sparse allreduce */
  const tutti_reduce_options_t* options; /* NULL: the mean */
  const int64_t* rows;                   /* one number per rank; NULL: equal parts */
  uint64_t flags;                        /* reserved, 0 */
} tutti_call_t;

/* The initial value of a tutti_call_t. */
#define TUTTI_CALL(kind_) \
  { sizeof(tutti_call_t), kind_, 0, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, 0 }

/* Starts a call, which is matched by its name. A join has no name. */
int tutti_start(tutti_comm_t comm, const tutti_call_t* call, tutti_work_t* work);
/* Starts several allreduces, allgathers or reduce_scatters, none of which begins before every rank
 * has started all of them. They have one kind, equal options, names and no handles, and they
 * scatter equal parts. The library allocates the results of all calls or of none. Output i of the
 * work is the result of calls[i]. */
int tutti_start_group(tutti_comm_t comm, const char* group, const tutti_call_t* calls, size_t count,
                      tutti_work_t* work);
/* Looks a name up once, for loops over many small tensors. Shape and dtype are those of `like`,
 * whose data may be NULL. The communicator owns the handle. A name always gives the same handle.
 * tutti_start() takes handles for every kind but join and sparse_allreduce. The input then has the
 * declared shape, or for kinds without rows the declared number of elements. */
int tutti_declare(tutti_comm_t comm, const char* name, const tutti_tensor_t* like,
                  tutti_name_t* handle);

/* Runs a blocking call, for results that the program waits for anyway, such as a loss. In shared
 * memory nothing is negotiated and no thread is woken: a small operation takes about a microsecond
 * instead of some five. In return, every rank must make its blocking calls, of all kinds, in one
 * order, as with MPI. Ranks whose calls differ in kind, name, count, dtype, op, root or rows all
 * get TUTTI_MISMATCH. The n-th blocking send from one rank to another matches the n-th blocking
 * receive there, which must have the same name; a send may block until the other rank receives.
 * Results go to the caller's memory. A broadcast is in place, and a barrier has no name. */
int tutti_run(tutti_comm_t comm, const tutti_call_t* call);
/* Runs a blocking send and receive at the same time, like MPI_Sendrecv. The two have their own
 * names and share no memory. If one fails, the error is returned after the other has ended. */
int tutti_sendrecv(tutti_comm_t comm, const tutti_call_t* send, const tutti_call_t* recv);

/* Reduces in place. */
static inline int tutti_allreduce(tutti_comm_t comm, const char* name, const tutti_tensor_t* tensor,
                                  int op, tutti_work_t* work) {
  tutti_reduce_options_t options = TUTTI_REDUCE_OPTIONS;
  tutti_call_t call = TUTTI_CALL(TUTTI_ALLREDUCE);
  options.op = op;
  call.name = name;
  call.input = tensor;
  call.options = &options;
  return tutti_start(comm, &call, work);
}

/* Broadcasts root's contents to all ranks, in place. */
static inline int tutti_broadcast(tutti_comm_t comm, const char* name, const tutti_tensor_t* tensor,
                                  int root, tutti_work_t* work) {
  tutti_call_t call = TUTTI_CALL(TUTTI_BROADCAST);
  call.name = name;
  call.root = root;
  call.input = tensor;
  return tutti_start(comm, &call, work);
}

/* The work is done when all ranks have called this. */
static inline int tutti_barrier(tutti_comm_t comm, const char* name, tutti_work_t* work) {
  tutti_call_t call = TUTTI_CALL(TUTTI_BARRIER);
  call.name = name;
  return tutti_start(comm, &call, work);
}

/* Reduces one number in place, by a blocking call. */
static inline int tutti_allreduce_value(tutti_comm_t comm, const char* name, double* value,
                                        int op) {
  tutti_tensor_t tensor = tutti_vector(value, 1, TUTTI_F64);
  tutti_reduce_options_t options = TUTTI_REDUCE_OPTIONS;
  tutti_call_t call = TUTTI_CALL(TUTTI_ALLREDUCE);
  options.op = op;
  call.name = name;
  call.input = &tensor;
  call.options = &options;
  return tutti_run(comm, &call);
}

/* --- bytes, waited for and matched by name --- */

/* Broadcasts root's bytes, of any number, as one part. The bytes of other ranks are ignored and may
 * be NULL. The caller releases the result. NULL for bytes at root is an error on every rank. */
int tutti_broadcast_bytes(tutti_comm_t comm, const char* name, const void* bytes, size_t size,
                          int root, tutti_bytes_t* result);
/* Gathers all ranks' bytes on every rank, one part per rank. The caller releases the result. */
int tutti_allgather_bytes(tutti_comm_t comm, const char* name, const void* bytes, size_t size,
                          tutti_bytes_t* result);
/* Returns the number of parts, or 0 if bytes is NULL. */
size_t tutti_bytes_parts(tutti_bytes_t bytes);
/* Returns a part and its size, valid until the bytes are released. Returns NULL and an error text
 * if there is no such part. `size` may be NULL. */
const void* tutti_bytes_part(tutti_bytes_t bytes, size_t part, size_t* size);
/* Releases the bytes. NULL is allowed. */
void tutti_bytes_release(tutti_bytes_t bytes);

/* --- works --- */

/* Waits for the operation and returns its status. It may be called again. */
int tutti_work_wait(tutti_work_t work);
/* Like tutti_work_wait, but returns TUTTI_TIMEOUT after `seconds`. The operation goes on. */
int tutti_work_wait_for(tutti_work_t work, double seconds);
/* Returns 1 if the operation is over and 0 if not, or -1 if work is NULL. Never blocks. */
int tutti_work_done(tutti_work_t work);
/* Makes a stream of a device wait instead of the host. For a name that is new, the host waits too.
 * For host memory this is tutti_work_wait. Errors are returned by tutti_work_wait. */
int tutti_work_wait_on(tutti_work_t work, void* stream);
/* Calls callback(context, status) once when the operation is over. If it is over already, the
 * callback runs now on this thread; otherwise a thread of the communicator runs such callbacks one
 * after another. If status is not TUTTI_OK, tutti_last_error() describes it inside the callback. A
 * callback must not wait; waiting returns TUTTI_CALLBACK. If tutti_work_then itself fails, the
 * callback is never called. The work may be released before the callback runs. */
int tutti_work_then(tutti_work_t work, void (*callback)(void* context, int status), void* context);
/* Waits and returns an output. Its memory is valid until the work is released. */
int tutti_work_output(tutti_work_t work, size_t index, tutti_tensor_t* output);
/* Waits and returns the number of rows that came from each rank (allgather, alltoall). Writes at
 * most `capacity` numbers, and the full count of numbers into *count. */
int tutti_work_received(tutti_work_t work, int64_t* rows, size_t capacity, size_t* count);
/* Waits and returns the rank that sent, for a receive. Returns -1 for other operations. */
int tutti_work_source(tutti_work_t work, int* source);
/* Releases the handle. This does not cancel the operation. NULL is allowed. */
void tutti_work_release(tutti_work_t work);

/* --- memory that the ranks of a host reach --- */

/* Allocates zeroed memory, 4096-byte aligned. If the backend shares memory, collectives read and
 * write it directly. Each rank decides for itself; ranks need not allocate the same. */
int tutti_allocate(tutti_comm_t comm, int64_t bytes, tutti_region_t* region);
/* Returns the memory's address, or NULL and an error text if region is NULL. */
void* tutti_region_data(tutti_region_t region);
/* Describes how other processes, or a device's library, map the memory. Set struct_size first. */
typedef struct tutti_region_handle {
  size_t struct_size; /* sizeof(tutti_region_handle_t) */
  int32_t kind;       /* 0: nobody can map it; 1: this process's threads; 2: descriptor holders */
  int32_t descriptor; /* borrowed from the region; -1: none */
  uint64_t offset;    /* kind 1: the address; kind 2: bytes into the descriptor's file */
  uint64_t bytes;     /* size of the memory from the offset on */
} tutti_region_handle_t;
/* Fills as many fields as struct_size allows. */
int tutti_region_export(tutti_region_t region, tutti_region_handle_t* handle);
/* Frees the memory. A pending operation that uses it fails on this rank (TUTTI_INVALID_ARGUMENT)
 * and keeps the memory until it ends. NULL is allowed. This may come after tutti_destroy(). */
void tutti_region_free(tutti_region_t region);

/* --- arenas --- */

/* Describes a gradient array in an arena, one block of the library's memory, for a trainer that has
 * no arrays of its own. If the ranks share memory, each rank reduces its part of every array
 * directly in all ranks' arenas, and nothing is packed or copied. Start from TUTTI_ARRAY and set
 * the fields before `strides`; the others may keep their values. */
typedef struct tutti_array {
  size_t struct_size;                  /* sizeof(tutti_array_t) */
  const char* name;                    /* matched over the ranks; the text is copied */
  int32_t dtype;                       /* enum tutti_dtype */
  int32_t dimensions;                  /* 0 to TUTTI_MAX_DIMENSIONS */
  int64_t shape[TUTTI_MAX_DIMENSIONS]; /* extents, of which `dimensions` count */
  const int64_t* strides;  /* in elements, one per dimension, of a dense layout; NULL: row-major */
  int32_t device;          /* enum tutti_device, one for all; TUTTI_CUDA: peer or nccl only */
  int32_t device_index;    /* from 0, among the device's kind */
  int32_t may_be_left_out; /* 1: see tutti_arena_leave_out */
  int32_t reserved;        /* 0 */
} tutti_array_t;

/* The initial value of a tutti_array_t: an f32 scalar. */
#define TUTTI_ARRAY \
  { sizeof(tutti_array_t), NULL, TUTTI_F32, 0, {0}, NULL, TUTTI_CPU, 0, 0, 0 }

/* Creates an arena of zeroed arrays; texts and numbers are copied. Every rank makes the same arenas
 * in the same order. NULL for `options` means the mean. Destroy it before its communicator. */
int tutti_arena_create(tutti_comm_t comm, const tutti_array_t* arrays, size_t count,
                       const tutti_reduce_options_t* options, tutti_arena_t* arena);
/* Waits for the reductions under way and frees the arena. NULL is allowed. */
void tutti_arena_destroy(tutti_arena_t arena);
/* Returns an array's memory, 64-byte aligned and valid until the arena is destroyed. Its strides
 * are those of the tutti_array_t. */
int tutti_arena_array(tutti_arena_t arena, const char* name, tutti_tensor_t* array);
/* Announces that this rank's gradient is complete, and starts its reduction. On a device it is
 * complete when the default stream has done the work enqueued so far. The array must not be written
 * before tutti_arena_wait. Arrays may become ready in any order and from any thread. */
int tutti_arena_ready(tutti_arena_t arena, const char* name);
/* Call this instead of tutti_arena_ready if this rank has no gradient for this array in this step.
 * The array takes part with zeros, and averages still divide by the number of all ranks. It must
 * have may_be_left_out set, and the reduction must be a sum or an average. */
int tutti_arena_leave_out(tutti_arena_t arena, const char* name);
/* Waits until every array holds its result, and begins a new step. TUTTI_INVALID_ARGUMENT names an
 * array that was neither ready nor left out; it can still become ready. */
int tutti_arena_wait(tutti_arena_t arena);
/* Like tutti_arena_wait, for at most `seconds`. After TUTTI_TIMEOUT *goes_on is 1, and the step may
 * be waited for again. Otherwise *goes_on is 0. `goes_on` may be NULL. */
int tutti_arena_wait_for(tutti_arena_t arena, double seconds, int* goes_on);
/* Sets *used to 1 if any rank had this array's gradient in the last step, and otherwise to 0. */
int tutti_arena_used(tutti_arena_t arena, const char* name, int* used);

/* --- statistics --- */

/* Counts since the communicator was made. Set struct_size first; the library fills what fits. */
typedef struct tutti_statistics {
  size_t struct_size;            /* sizeof(tutti_statistics_t) */
  uint64_t operations;           /* works and blocking calls that are over */
  uint64_t tensors;              /* of allreduces; a blocking call in shared memory counts as one */
  uint64_t buckets;              /* launched fused buckets and other replayed operations */
  uint64_t replayed_buckets;     /* those of `buckets` that needed no negotiation */
  uint64_t vetoed_buckets;       /* replayed buckets that were dropped and renegotiated */
  uint64_t data_messages;        /* sent by this rank, as in the next three fields */
  uint64_t data_bytes;           /* in the data messages */
  uint64_t control_messages;     /* of the negotiation and of the transport */
  uint64_t control_bytes;        /* in the control messages */
  uint64_t wakeups;              /* of the background thread */
  uint64_t allocations;          /* on the data path */
  double wait_seconds;           /* time that callers spent waiting */
  double exposed_seconds;        /* part of wait_seconds in which data moved */
  double skew_seconds;           /* part of wait_seconds in which other ranks were missing */
  uint64_t plans_locked;         /* how often replay began */
  uint64_t predicted_messages;   /* of the replayed buckets, as their plans predict */
  uint64_t predicted_bytes;      /* in the predicted messages */
  uint64_t negotiation_messages; /* sent by this rank: requests and responses alone */
  uint64_t caller_runs;          /* waits in which the caller drove the engine itself */
  uint64_t copied_bytes;         /* copied into and out of the slots of shared memory */
} tutti_statistics_t;

/* Returns this rank's statistics. */
int tutti_get_statistics(tutti_comm_t comm, tutti_statistics_t* statistics);
/* Returns the bytes of messages that this rank sent to each rank, control and framing included.
 * Memory that ranks read directly from each other is not counted. Writes at most `capacity`
 * numbers, and the full count of numbers into *count. */
int tutti_get_bytes_to_peers(tutti_comm_t comm, uint64_t* bytes, size_t capacity, size_t* count);

/* Starts a Chrome trace of the operations. Every rank must stop it; rank 0 then writes the file. */
int tutti_start_timeline(tutti_comm_t comm, const char* file);
/* See tutti_start_timeline(). */
int tutti_stop_timeline(tutti_comm_t comm);
/* Adds a span to the timeline, in seconds of CLOCK_MONOTONIC. Does nothing without a timeline. */
int tutti_timeline_span(tutti_comm_t comm, const char* name, double begin, double end);

#ifdef __cplusplus
}
#endif

#endif /* TUTTI_H_ */
