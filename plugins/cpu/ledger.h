// Who holds which page of a pool: one call for any number of pages, plain memory, no runtime.
//
// Guarantees: a call checks everything before it changes anything; pages come and go in the order in
// which they are named. Knows neither what pages hold nor who holds them. edgekv/cache/allocator.py
// owns the memory and says what the states mean.
#pragma once

#include <cstdint>

extern "C" {

struct EdgekvLedger {
  int64_t num_pages;
  int64_t top;            // free[top, num_pages) are free, the next one to be taken first
  int64_t peak;           // most pages that were neither free nor cached
  int64_t num_in_flight;  // held by nobody, fenced
  int64_t num_cached;     // held by nobody, not fenced, kept
  int64_t stamp;          // grows with every call
  int64_t culprit;        // the page that the last refused call was refused for
  int32_t* free;          // (num_pages,)
  int32_t* refs;          // (num_pages,) holders
  int32_t* fences;        // (num_pages,) steps in flight that name the page
  uint8_t* kept;          // (num_pages,) 0 or 1
  int64_t* stamps;        // (num_pages,) the last call that named the page
  int64_t* times_taken;   // (num_pages,) how often: what was known of a page before is of another
};

// 0 is done. Otherwise nothing has changed and `culprit` is set.
enum EdgekvLedgerCode {
  EDGEKV_LEDGER_DONE = 0,
  EDGEKV_LEDGER_OUTSIDE = 1,   // no page of the pool
  EDGEKV_LEDGER_REPEATED = 2,  // named twice
  EDGEKV_LEDGER_UNHELD = 3,    // held by nobody
  EDGEKV_LEDGER_UNKEPT = 4,    // not kept
};

#define EDGEKV_LEDGER_CALL __attribute__((visibility("default"))) int32_t

// Takes n <= num_pages - top free pages: each is held once.
EDGEKV_LEDGER_CALL edgekv_ledger_take(EdgekvLedger*, int32_t* pages, int64_t n);
// One more holder of held pages.
EDGEKV_LEDGER_CALL edgekv_ledger_retain(EdgekvLedger*, const int32_t* pages, int64_t n);
// One holder less; what nobody holds or fences any more is cached if it is kept, free otherwise.
EDGEKV_LEDGER_CALL edgekv_ledger_release(EdgekvLedger*, const int32_t* pages, int64_t n);
// Held pages are kept from now on.
EDGEKV_LEDGER_CALL edgekv_ledger_keep(EdgekvLedger*, const int32_t* pages, int64_t n);
// One more holder of kept pages, held or not.
EDGEKV_LEDGER_CALL edgekv_ledger_hold(EdgekvLedger*, const int32_t* pages, int64_t n);
// Kept pages are kept no longer: cached ones are free.
EDGEKV_LEDGER_CALL edgekv_ledger_forget(EdgekvLedger*, const int32_t* pages, int64_t n);
// Fences held pages once for each row that names them; row i has the next counts[i] pages, distinct.
EDGEKV_LEDGER_CALL edgekv_ledger_fence(EdgekvLedger*, const int32_t* pages, const int64_t* counts,
                                       int64_t num_rows);
// Undoes such a call: what nobody holds or fences any more goes as in release, in ascending order.
// `scratch` has room for num_pages pages.
EDGEKV_LEDGER_CALL edgekv_ledger_unfence(EdgekvLedger*, const int32_t* pages, int64_t n,
                                         int32_t* scratch);
}
