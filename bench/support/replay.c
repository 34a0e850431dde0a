/* Replays raw Kafka requests over many connections, each with a window of requests in flight, and counts.
 *
 *     replay SCRIPT PORT SECONDS IN_FLIGHT RATE SUMS
 *
 * The script (little-endian, written by bench/support/replay.py): how many connections; of each, how many requests; of each
 * request its length, where in the response an error code stands, where in the request the batch of an idempotent
 * producer stands (-1: nowhere), how many records it has, and its bytes, size included. A connection sends its
 * requests in turn, again and again; base sequence and CRC of an idempotent producer's batch are brought up to date
 * before each sending. RATE: requests a second on all connections together, each sent when it is due; 0: as soon as
 * there is room in the window. SUMS: 1 to add up the bytes that come, as a consumer that checks CRCs reads each of
 * them; 0 to drop them. Prints one line of JSON. One thread; the server is to be the limit.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { HEAD_BYTES = 256, READ_BYTES = 1 << 20, MAX_LATENCIES = 4000000 };

typedef struct {
    uint32_t length, error_at;
    int32_t batch_at, records, sequence;
    uint8_t *bytes;
} Request;

typedef struct {
    int socket;
    uint32_t count, next, sent_of_next;
    Request *requests;
    uint32_t in_flight, first_in_flight; /* a ring: when each was sent, and which */
    double *sent_at;
    uint32_t *which;
    uint8_t head[HEAD_BYTES]; /* size and first bytes of the response that is being read */
    uint32_t head_filled;
    uint64_t left; /* bytes of it that are still to come, -1 while its size is not known */
    int is_in_response;
} Connection;

static uint32_t crc_table[8][256];
static uint8_t buffer[READ_BYTES];
static float *latencies;
static uint64_t answered, received_bytes, sent_bytes, errors, latency_count;
static int first_error, sums;
static double interval, due; /* seconds between two requests, and when the next one is to be sent; 0: at once */

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + at.tv_nsec * 1e-9;
}

static void die(const char *what) {
    fprintf(stderr, "replay: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void make_crc_table(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? crc >> 1 ^ 0x82f63b78u : crc >> 1;
        crc_table[0][byte] = crc;
    }
    for (uint32_t byte = 0; byte < 256; byte++)
        for (int slice = 1; slice < 8; slice++)
            crc_table[slice][byte] = crc_table[slice - 1][byte] >> 8 ^ crc_table[0][crc_table[slice - 1][byte] & 255];
}

static uint32_t crc32c(const uint8_t *data, size_t length) { /* slicing by 8 */
    uint32_t crc = ~0u;
    for (; length >= 8; data += 8, length -= 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        word ^= crc;
        crc = 0;
        for (int slice = 0; slice < 8; slice++) crc ^= crc_table[7 - slice][word >> 8 * slice & 255];
    }
    while (length--) crc = crc >> 8 ^ crc_table[0][(crc ^ *data++) & 255];
    return ~crc;
}

static void put32(uint8_t *at, uint32_t value) {
    value = htonl(value);
    memcpy(at, &value, 4);
}

static uint32_t get32(const uint8_t *at) {
    uint32_t value;
    memcpy(&value, at, 4);
    return ntohl(value);
}

static void number_batch(Request *request) {
    uint8_t *batch = request->bytes + request->batch_at;
    uint32_t length = get32(batch + 8) + 12;
    put32(batch + 53, (uint32_t)request->sequence);
    put32(batch + 17, crc32c(batch + 21, length - 21));
    request->sequence += request->records;
}

static int is_next_due(void) { return !interval || now() >= due; }

static void send_some(Connection *connection, uint32_t window, int is_over) {
    while (connection->in_flight < window && (connection->sent_of_next || (!is_over && is_next_due()))) {
        Request *request = &connection->requests[connection->next];
        if (!connection->sent_of_next && request->batch_at >= 0) number_batch(request);
        ssize_t sent = send(connection->socket, request->bytes + connection->sent_of_next,
                            request->length - connection->sent_of_next, MSG_NOSIGNAL);
        if (sent < 0) {
            if (errno == EAGAIN) return;
            die("send");
        }
        sent_bytes += sent;
        connection->sent_of_next += sent;
        if (connection->sent_of_next < request->length) return;
        uint32_t place = (connection->first_in_flight + connection->in_flight++) % window;
        connection->sent_at[place] = interval ? due : now();
        due += interval;
        connection->which[place] = connection->next;
        connection->sent_of_next = 0;
        connection->next = (connection->next + 1) % connection->count;
    }
}

static void response_came(Connection *connection, uint32_t window) {
    Request *request = &connection->requests[connection->which[connection->first_in_flight]];
    if (latency_count < MAX_LATENCIES)
        latencies[latency_count++] = now() - connection->sent_at[connection->first_in_flight];
    connection->first_in_flight = (connection->first_in_flight + 1) % window;
    connection->in_flight--;
    answered++;
    if (request->error_at && request->error_at + 2 <= connection->head_filled) {
        int16_t code = connection->head[request->error_at] << 8 | connection->head[request->error_at + 1];
        if (code) {
            errors++;
            first_error = first_error ? first_error : code;
        }
    }
}

static void add_up(const uint8_t *data, size_t length) {
    static volatile uint64_t seen;
    uint64_t sum = 0, word;
    for (; length >= 8; data += 8, length -= 8) {
        memcpy(&word, data, 8);
        sum = sum * 31 + word;
    }
    seen += sum;
}

static void receive_some(Connection *connection, uint32_t window) {
    ssize_t came = recv(connection->socket, buffer, sizeof buffer, 0);
    if (came < 0 && errno == EAGAIN) return;
    if (came <= 0) die("the server hung up");
    received_bytes += came;
    if (sums) add_up(buffer, came);
    uint8_t *at = buffer, *end = buffer + came;
    while (at < end) {
        while (!connection->is_in_response && at < end) {
            connection->head[connection->head_filled++] = *at++;
            if (connection->head_filled == 4) {
                connection->left = get32(connection->head);
                connection->is_in_response = 1;
            }
        }
        if (!connection->is_in_response) return;
        uint64_t taken = (uint64_t)(end - at) < connection->left ? (uint64_t)(end - at) : connection->left;
        uint64_t kept = HEAD_BYTES - connection->head_filled < taken ? HEAD_BYTES - connection->head_filled : taken;
        memcpy(connection->head + connection->head_filled, at, kept);
        connection->head_filled += kept;
        at += taken;
        connection->left -= taken;
        if (connection->left) return;
        if (!connection->in_flight) die("an answer to nothing");
        response_came(connection, window);
        connection->head_filled = connection->is_in_response = 0;
    }
}

static void read_or_die(void *into, size_t size, FILE *file) {
    if (fread(into, 1, size, file) != size) die("the script ends too early");
}

static int by_size(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static double quantile(double share) {
    return latency_count ? latencies[(uint64_t)(share * (latency_count - 1))] * 1e3 : 0;
}

int main(int count, char **words) {
    if (count != 7) {
        fprintf(stderr, "usage: replay SCRIPT PORT SECONDS IN_FLIGHT RATE SUMS\n");
        return 2;
    }
    make_crc_table();
    latencies = malloc(MAX_LATENCIES * sizeof *latencies);
    FILE *script = fopen(words[1], "rb");
    if (!script) die(words[1]);
    int port = atoi(words[2]);
    double seconds = atof(words[3]), rate = atof(words[5]);
    interval = rate ? 1 / rate : 0;
    sums = atoi(words[6]);
    uint32_t window = atoi(words[4]), connections;
    read_or_die(&connections, 4, script);
    Connection *all = calloc(connections, sizeof *all);
    int poll = epoll_create1(0);
    for (uint32_t i = 0; i < connections; i++) {
        Connection *connection = &all[i];
        read_or_die(&connection->count, 4, script);
        connection->requests = calloc(connection->count, sizeof *connection->requests);
        connection->sent_at = calloc(window, sizeof *connection->sent_at);
        connection->which = calloc(window, sizeof *connection->which);
        for (uint32_t j = 0; j < connection->count; j++) {
            Request *request = &connection->requests[j];
            read_or_die(&request->length, 16, script); /* length, error_at, batch_at, records */
            request->bytes = malloc(request->length);
            read_or_die(request->bytes, request->length, script);
        }
        struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        connection->socket = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(connection->socket, (struct sockaddr *)&address, sizeof address)) die("connect");
        int yes = 1;
        setsockopt(connection->socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        fcntl(connection->socket, F_SETFL, O_NONBLOCK);
        struct epoll_event wanted = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.ptr = connection};
        epoll_ctl(poll, EPOLL_CTL_ADD, connection->socket, &wanted);
    }
    double started = now(), ends = started + seconds, elapsed;
    uint32_t waiting = 0, turn = 0;
    due = started;
    do { /* then what is in flight is waited for, for ten seconds at most */
        struct epoll_event events[256];
        int ready = epoll_wait(poll, events, 256, interval ? 1 : 100);
        int is_over = now() >= ends;
        if (interval) send_some(&all[turn++ % connections], window, is_over);
        for (int i = 0; i < ready; i++) {
            Connection *connection = events[i].data.ptr;
            uint64_t before;
            do {
                before = received_bytes;
                if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) receive_some(connection, window);
                send_some(connection, window, is_over);
            } while (received_bytes != before);
        }
        elapsed = now() - started;
        waiting = 0;
        if (is_over)
            for (uint32_t i = 0; i < connections; i++) waiting += all[i].in_flight;
        else
            waiting = 1;
    } while (waiting && elapsed < seconds + 10);
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    qsort(latencies, latency_count, sizeof *latencies, by_size);
    printf("{\"requests\": %lu, \"sent_bytes\": %lu, \"received_bytes\": %lu, \"errors\": %lu, \"first_error\": %d, "
           "\"unanswered\": %u, \"seconds\": %.3f, \"p50_ms\": %.2f, \"p99_ms\": %.2f, \"p999_ms\": %.2f, "
           "\"client_cpu_seconds\": %.3f}\n",
           answered, sent_bytes, received_bytes, errors, first_error, waiting, elapsed, quantile(0.5), quantile(0.99),
           quantile(0.999), used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6);
    return 0;
}
