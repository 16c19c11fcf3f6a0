#include "version.h"

int64_t edgekv_native_version() { return 5; }
