/* share_test.c - serve/share: versions over HTTP, and a reader that never mixes two. */
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <pthread.h>

#include "format/ckpt.h"
#include "serve/share/share_http.h"
#include "store/live.h"
#include "store/same_machine.h"
#include "serve/share/share_source.h"
#include "store/store.h"
#include "tests/test.h"
#include "tests/unit/format/format_make.h"

static struct versions versions;
static struct share_http *http;
static char url[64];
static int http_only; /* of the server that begin() opens */

/* A checkpoint of n specs in the folder `name`; another n gives another digest. */
static const char *make(const char *name, int n)
{
    static char path[512];
    struct err e = { 0 };
    in_tmp(test_tmp_dir(), name, path);
    CHECK_INT(io_remove_tree(path, &e), 0);
    CHECK_INT(make_ckpt(path, small_specs(), n, 2, 7, 0, NULL, &e), 0);
    return path;
}

static void publish(const char *name, int64_t step, int n)
{
    struct version *v = NULL;
    struct err e = { 0 };
    CHECK_INT(version_open(&v, make(name, n), step, &e), 0);
    CHECK_INT(versions_add(&versions, v, &e), 0);
}

static void begin(void)
{
    struct err e = { 0 };
    CHECK_INT(versions_open(&versions, &e), 0);
    CHECK_INT(share_http_open(&http, &(struct share_http_opts){ .host = "127.0.0.1", .http_only = http_only },
                              &versions, &e),
              0);
    snprintf(url, sizeof url, "http://127.0.0.1:%d", share_http_port(http));
}

static void end(void)
{
    versions_stop(&versions);
    share_http_close(http);
    versions_close(&versions);
}

/* Reads tensor i and compares it with the values it was made of. */
static int read_tensor(struct ckpt *c, int i, struct err *e)
{
    const struct ckpt_tensor *t = ckpt_tensor(c, i);
    struct box all = box_whole(t->n_dims, t->shape);
    char got[4096], want[4096];
    int rc = ckpt_read(c, i, &all, got, e);
    if (rc < 0)
        return rc;
    fill_range(t, &all, 0, box_count(&all), want);
    CHECK_SAME(got, want, (size_t)stored_bytes(t->dtype, box_count(&all)));
    return 0;
}

TEST(the_weights_are_a_checkpoint_at_the_url_without_the_optimizers_files)
{
    struct err e = { 0 };
    struct ckpt *c = NULL, *whole = NULL;
    begin();
    publish("step-5", 5, N_SPECS);
    CHECK_INT(ckpt_open(&c, url, NULL, &e), 0);
    CHECK_INT(ckpt_open(&whole, make("step-5", N_SPECS), NULL, &e), 0);
    CHECK_STR(ckpt_driver(c), "native");
    CHECK_INT(ckpt_n_tensors(c), 3);
    CHECK_INT(ckpt_n_tensors(whole), N_SPECS);
    CHECK_INT(ckpt_state(c)->has_state, 0);
    CHECK_INT(ckpt_n_extra(c), 2);
    CHECK_STR(ckpt_config_json(c), ckpt_config_json(whole));
    for (int i = 0; i < 3; i++) {
        CHECK_INT(read_tensor(c, i, &e), 0);
        CHECK_SAME(&ckpt_tensor(c, i)->digest, &ckpt_tensor(whole, i)->digest, sizeof(struct ckpt_digest));
    }
    CHECK_INT(ckpt_verify(c, 0, &e), 0);
    CHECK_HAS(ckpt_version(c), "5-");
    ckpt_close(c);
    ckpt_close(whole);
    end();
}

TEST(a_version_that_changes_between_two_reads_is_one_clear_error_and_never_a_mixture)
{
    struct err e = { 0 };
    struct ckpt *c = NULL;
    struct store *s = NULL;
    struct store_info info;
    char byte;
    begin();
    publish("step-5", 5, 2);
    CHECK_INT(store_open(&s, url, &e), 0);
    CHECK_INT(store_stat(s, "manifest.json", &info, &e), 1);
    CHECK(store_is_version(info.etag));
    CHECK_INT(ckpt_open(&c, url, NULL, &e), 0);
    CHECK_INT(store_read(s, "manifest.json", &info, 0, 1, &byte, &e), 0);

    publish("step-6", 6, 3);
    CHECK_INT(read_tensor(c, 0, &e), -ERR_INTEGRITY);
    CHECK_HAS(e.text, "the version has changed: open it again");
    CHECK_INT(store_read(s, "manifest.json", &info, 0, 1, &byte, &e), -ERR_INTEGRITY);
    CHECK_HAS(e.text, "the version has changed: open it again");
    CHECK_INT(store_stat(s, "config.json", &info, &e), -ERR_INTEGRITY);
    CHECK_HAS(e.text, "the version has changed: open it again");
    ckpt_close(c);
    store_close(s);

    CHECK_INT(ckpt_open(&c, url, NULL, &e), 0);
    CHECK_INT(ckpt_n_tensors(c), 3);
    CHECK_INT(ckpt_verify(c, 0, &e), 0);
    ckpt_close(c);
    end();
}

TEST(a_server_without_a_version_is_no_error)
{
    struct err e = { 0 };
    struct live_version v;
    begin();
    CHECK_INT(live_version_get(url, -1, 0, NULL, &v, &e), 0);
    CHECK_INT(live_version_hold(url, -1, NULL, &v, &e), 0);
    publish("step-5", 5, 2);
    CHECK_INT(live_version_get(url, -1, 0, NULL, &v, &e), 1);
    end();
}

TEST(versions_do_not_go_backwards)
{
    struct err e = { 0 };
    struct version *v = NULL;
    int64_t steps[] = { 5, 4 };
    begin();
    publish("step-5", 5, 2);
    for (int i = 0; i < 2; i++) {
        CHECK_INT(version_open(&v, make("step-4", 3), steps[i], &e), 0);
        CHECK_INT(versions_add(&versions, v, &e), -ERR_USAGE);
        CHECK_HAS(e.text, "versions do not go backwards");
    }
    CHECK_INT(versions.newest->step, 5);
    end();
}

static void *wait_for_6(void *arg)
{
    struct version **got = arg;
    *got = versions_wait(&versions, 5, 60);
    return NULL;
}

static const char *quoted(const char *etag)
{
    static char text[100];
    snprintf(text, sizeof text, "\"%s\"", etag);
    return text;
}

/* 1: the version can be read by a reader that keeps to it. */
static int can_be_read(const char *etag)
{
    struct err e = { 0 };
    struct store *s = NULL;
    struct store_info info;
    char byte;
    CHECK_INT(store_open(&s, url, &e), 0);
    store_keep_to(s, quoted(etag));
    int rc = store_stat(s, "manifest.json", &info, &e);
    if (rc > 0)
        rc = store_read(s, "manifest.json", &info, 0, 1, &byte, &e);
    store_close(s);
    return rc >= 0;
}

/* Waits until the server has sent its last answer, which has the held version until then. */
static void await_idle(void)
{
    while (atomic_load(&versions.held->users) > 1)
        nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
}

TEST(a_version_that_a_slow_reader_asked_for_stays_until_it_is_read)
{
    struct err e = { 0 };
    struct live_version first, next;
    char etag[2][80];
    begin();
    versions.hold_s = 1000;
    publish("step-5", 5, 2);
    CHECK_INT(live_version_hold(url, -1, NULL, &first, &e), 1);
    publish("step-6", 6, 3);
    publish("step-7", 7, 2);
    snprintf(etag[0], sizeof etag[0], "5-%s", first.digest);
    CHECK(can_be_read(etag[0]));
    CHECK_INT(live_version_hold(url, 4, NULL, &next, &e), 1);
    CHECK_INT(next.version, 5); /* a second reader shares it */
    CHECK_INT(live_version_get(url, -1, 0, NULL, &next, &e), 1);
    CHECK_INT(next.version, 7); /* others have the newest one */

    CHECK_INT(live_version_hold(url, 6, NULL, &next, &e), 1);
    CHECK_INT(next.version, 7);
    CHECK(can_be_read(etag[0])); /* which was not given up for a reader that is ahead */
    struct version *reader = versions_find(&versions, quoted(etag[0]));
    CHECK_INT(live_version_hold(url, 5, NULL, &next, &e), 1);
    CHECK_INT(next.version, 7);
    CHECK(can_be_read(etag[0])); /* another one still reads it */
    versions_release(&versions, reader);
    publish("step-8", 8, 3);
    snprintf(etag[1], sizeof etag[1], "7-%s", next.digest);
    CHECK(can_be_read(etag[1]));
    while (can_be_read(etag[0])) { /* until the server has sent its last answer */
        nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
        versions_expire(&versions);
    }
    end();
}

TEST(a_held_version_goes_when_nobody_reads_it_any_more)
{
    struct err e = { 0 };
    struct live_version v;
    char etag[80];
    begin();
    versions.hold_s = 0;
    publish("step-5", 5, 2);
    CHECK_INT(live_version_hold(url, -1, NULL, &v, &e), 1);
    snprintf(etag, sizeof etag, "5-%s", v.digest);
    struct version *reader = versions_acquire(&versions);
    publish("step-6", 6, 3);
    CHECK(can_be_read(etag));
    versions_release(&versions, reader);
    await_idle();
    versions_expire(&versions);
    CHECK(!can_be_read(etag));
    end();
}

TEST(deltas_start_from_the_version_that_a_reader_took_last)
{
    struct err e = { 0 };
    struct live_version v;
    begin();
    versions.keeps_before = 1;
    publish("step-5", 5, 2);
    CHECK_INT(live_version_hold(url, -1, NULL, &v, &e), 1);
    for (int step = 6; step < 9; step++)
        publish("step-6", step, 2 + step % 2);
    struct version *held = versions_hold(&versions, 5), *base = versions_base(&versions, held, 5);
    CHECK_INT(held->step, 8);
    CHECK(base != NULL && base->step == 5);
    CHECK(versions_base(&versions, held, 6) == NULL);
    versions_release(&versions, base);
    publish("step-6", 9, 2);
    base = versions_base(&versions, held, 5);
    CHECK(base != NULL && base->step == 5);
    versions_release(&versions, base);
    versions_release(&versions, held);
    end();
}

TEST(a_wait_ends_with_the_next_version_with_its_time_or_with_the_server)
{
    struct version *got = NULL;
    pthread_t t;
    begin();
    publish("step-5", 5, 2);
    CHECK(!versions_wait(&versions, 5, 0));
    CHECK_INT(pthread_create(&t, NULL, wait_for_6, &got), 0);
    publish("step-6", 6, 3);
    pthread_join(t, NULL);
    CHECK(got && got->step == 6);
    publish("step-7", 7, 2);
    CHECK_INT(got->step, 6); /* borrowed: it lives until it is released */
    versions_release(&versions, got);
    versions_stop(&versions);
    CHECK(!versions_wait(&versions, 9, 60));
    end();
}

TEST(the_newest_checkpoint_of_a_runs_folder_is_found)
{
    char dir[512], sub[600], path[1000];
    int64_t step = -1;
    struct err e = { 0 };
    in_tmp(test_tmp_dir(), "run", dir);
    CHECK_INT(io_remove_tree(dir, &e), 0);
    CHECK_INT(io_mkdir(dir, &e), 0);
    CHECK(!source_newest(dir, -1, path, sizeof path, &step));
    make("run/step-9", 2);
    make("run/step-10", 2);
    snprintf(sub, sizeof sub, "%s/step-11", dir); /* not whole */
    CHECK_INT(io_mkdir(sub, &e), 0);
    CHECK(source_newest(dir, -1, path, sizeof path, &step));
    CHECK_INT(step, 10);
    CHECK(!source_newest(dir, 10, path, sizeof path, &step));
    CHECK(source_follows(dir));
    CHECK(!source_follows(path));
}

TEST(other_machines_need_a_key_and_a_server_for_them_needs_a_file_of_keys)
{
    struct err e = { 0 };
    struct share_http *h = NULL;
    struct keys keys = { 0 };
    struct ifaddrs *all = NULL;
    struct ckpt *c = NULL;
    char path[512], host[INET_ADDRSTRLEN] = "", there[128];
    CHECK_INT(versions_open(&versions, &e), 0);
    CHECK_INT(share_http_open(&h, &(struct share_http_opts){ .host = "0.0.0.0" }, &versions, &e), -ERR_USAGE);
    CHECK_HAS(e.text, "give --key-file");

    in_tmp(test_tmp_dir(), "keys", path);
    CHECK_INT(io_unlink(path, &e), 0);
    CHECK_INT(io_write_file(path, "# of the test\nopen-sesame\n", 26, &e), 0);
    CHECK_INT(keys_open(&keys, path, &e), 0);
    CHECK_INT(share_http_open(&h, &(struct share_http_opts){ .host = "0.0.0.0", .keys = &keys }, &versions,
                              &e),
              0);
    publish("step-5", 5, 2);
    getifaddrs(&all);
    for (struct ifaddrs *a = all; a; a = a->ifa_next)
        if (a->ifa_addr && a->ifa_addr->sa_family == AF_INET && !(a->ifa_flags & IFF_LOOPBACK))
            inet_ntop(AF_INET, &((struct sockaddr_in *)a->ifa_addr)->sin_addr, host, sizeof host);
    freeifaddrs(all);
    struct live_version v;
    snprintf(there, sizeof there, "http://any:wrong@127.0.0.1:%d/none", share_http_port(h));
    CHECK_INT(live_version_get(there, -1, 0, NULL, &v, &e), -ERR_FILE);
    CHECK_HAS(e.text, "http://127.0.0.1:");
    CHECK(!strstr(e.text, "wrong")); /* a key is no matter of messages */
    CHECK_STR(url_shown("http://127.0.0.1/a@b", path, sizeof path), "http://127.0.0.1/a@b");
    CHECK_STR(url_shown("hf://owner/name@main", path, sizeof path), "hf://owner/name@main");
    if (*host) { /* another address of this machine is as another machine */
        snprintf(there, sizeof there, "http://%s:%d", host, share_http_port(h));
        CHECK(ckpt_open(&c, there, NULL, &e) < 0);
        CHECK_HAS(e.text, "401");
        snprintf(there, sizeof there, "http://any:wrong@%s:%d", host, share_http_port(h));
        CHECK(ckpt_open(&c, there, NULL, &e) < 0);
        snprintf(there, sizeof there, "http://any:open-sesame@%s:%d", host, share_http_port(h));
        CHECK_INT(ckpt_open(&c, there, NULL, &e), 0);
        CHECK_INT(ckpt_verify(c, 0, &e), 0);
        CHECK(!strstr(ckpt_path(c), "open-sesame")); /* it is in messages */
        CHECK_HAS(ckpt_path(c), host);
        CHECK_STR(ckpt_opened(c), there);
        ckpt_close(c);
    }
    versions_stop(&versions);
    share_http_close(h);
    versions_close(&versions);
    keys_close(&keys);
}

/* Opens the checkpoint as ranks do that follow its URL. */
static struct ckpt *open_shared(int alone)
{
    struct err e = { 0 };
    struct ckpt *c = NULL;
    CHECK_INT(ckpt_open(&c, url, &(struct ckpt_open_opts){ .in_memory = 1, .alone = alone }, &e), 0);
    return c;
}

TEST(a_reader_of_this_machine_opens_the_servers_own_files_and_keeps_the_version_that_it_opened)
{
    struct err e = { 0 };
    begin();
    publish("step-5", 5, N_SPECS);
    struct ckpt *c = open_shared(0);
    CHECK(ckpt_is_shared(c));
    CHECK_HAS(ckpt_version(c), "5-");
    publish("step-6", 6, 2);
    for (int i = 0; i < ckpt_n_tensors(c); i++)
        CHECK_INT(read_tensor(c, i, &e), 0);
    CHECK_INT(ckpt_received(c), 0);
    CHECK(ckpt_bytes_read(c) > 0);
    struct box all = box_whole(ckpt_tensor(c, 0)->n_dims, ckpt_tensor(c, 0)->shape);
    struct ckpt_place place;
    CHECK_INT(ckpt_locate(c, 0, &all, 0, &place), 0); /* a trainer's memory is not computed from */
    ckpt_close(c);
    end();
}

TEST(a_server_that_names_no_files_sends_their_bytes_to_one_reader_without_a_cache)
{
    struct err e = { 0 };
    http_only = 1;
    begin();
    http_only = 0;
    publish("step-5", 5, N_SPECS);
    struct ckpt *c = open_shared(1);
    CHECK(!ckpt_is_shared(c));
    CHECK_INT(ckpt_cache(c), 0);
    for (int i = 0; i < ckpt_n_tensors(c); i++)
        CHECK_INT(read_tensor(c, i, &e), 0);
    CHECK(ckpt_received(c) > 0);
    ckpt_close(c);
    c = open_shared(0); /* several share what one of them receives */
    CHECK(ckpt_cache(c) != 0);
    CHECK_INT(read_tensor(c, 0, &e), 0);
    ckpt_close(c);
    end();
}

TEST(a_file_that_is_not_the_one_named_is_not_opened)
{
    struct err e = { 0 };
    char path[512], name[SAME_MACHINE_BYTES], other[SAME_MACHINE_BYTES + 8];
    in_tmp(test_tmp_dir(), "named", path);
    CHECK_INT(io_write_file(path, "12345", 5, &e), 0);
    int fd = io_open_read(path, &e), got = -1;
    CHECK(fd >= 0 && same_machine_name(fd, name));
    CHECK((got = same_machine_open(name, 5)) >= 0);
    io_close(got);
    CHECK_INT(same_machine_open(name, 6), -1);
    snprintf(other, sizeof other, "%s0", name); /* another inode */
    CHECK_INT(same_machine_open(other, 5), -1);
    snprintf(other, sizeof other, "%s x", name);
    CHECK_INT(same_machine_open(other, 5), -1);
    CHECK_INT(same_machine_open("", 5), -1);
    CHECK_INT(same_machine_open("/etc/passwd", 5), -1);
    io_close(fd);
    CHECK_INT(same_machine_open(name, 5), -1);
    fd = io_open_read("/dev/null", &e);
    CHECK(!same_machine_name(fd, name));
    io_close(fd);
}
