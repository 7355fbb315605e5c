import com.google.gson.Gson;
import com.google.gson.JsonObject;
import io.nats.client.Connection;
import io.nats.client.Message;
import io.nats.client.NUID;
import io.nats.client.Nats;
import io.nats.client.Options;
import io.nats.client.Subscription;
import java.io.IOException;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Predicate;
import org.bouncycastle.crypto.digests.Blake2bDigest;
import org.bouncycastle.util.encoders.Hex;

/**
 * A Caravan client in Java: the official NATS client and nothing of Caravan. CARAVAN_NATS_URL names the bus,
 * user and password inside.
 *
 * <p>Submits a job, follows it until it runs, stops it, follows it until it is over, and reads what the log says of
 * that time.
 */
public final class Client {
    private static final Gson GSON = new Gson();
    private static final Duration PATIENCE = Duration.ofSeconds(5);
    private static final String JOB_ID = "caf\u00e9/menu.java";
    private static final String JOB = """
            {"ID": "%s", "Update": {"MinHealthyTime": 1000000000},
              "TaskGroups": [{"Name": "kitchen", "Count": 2, "Tasks": [{
              "Name": "sleep", "Driver": "raw_exec", "Config": {"command": "/bin/sleep", "args": ["3600"]},
              "Resources": {"CPU": 20, "MemoryMB": 16}}]}]}""".formatted(JOB_ID);

    record Line(long seq, String kind, String sum) {}

    /** Spell an id as one token of a subject. */
    static String token(String id) {
        StringBuilder out = new StringBuilder();
        for (byte one : id.getBytes(StandardCharsets.UTF_8)) {
            String plain = String.valueOf((char) one);
            out.append(plain.matches("[A-Za-z0-9_-]") ? plain : "~%02X".formatted(one));
        }
        return out.toString();
    }

    static JsonObject json(Message message) {
        return GSON.fromJson(new String(message.getData(), StandardCharsets.UTF_8), JsonObject.class);
    }

    /** Ask for a verdict, again under the same id while there is none; return the seq it names. */
    static long submit(Connection nc, String verb, String members) throws InterruptedException {
        String body = "{%s, \"SubmissionID\": \"java-%s\"}".formatted(members, NUID.nextGlobal());
        for (int tries = 0; tries < 10; tries++) {
            byte[] data = body.getBytes(StandardCharsets.UTF_8);
            Message reply = nc.request("api.jobs." + verb, data, Duration.ofSeconds(6));
            if (reply == null || reply.isStatusMessage()) {
                System.err.println("no service answered");
                Thread.sleep(500);
                continue;
            }
            JsonObject verdict = json(reply);
            String status = verdict.get("status").getAsString();
            if (status.equals("accepted")) {
                return verdict.get("seq").getAsLong();
            }
            if (status.equals("refused")) {
                JsonObject error = verdict.getAsJsonObject("error");
                if (!error.get("code").getAsString().equals("unavailable")) {
                    throw new IllegalStateException("refused: " + error.get("message"));
                }
            }
        }
        throw new IllegalStateException("no verdict");
    }

    /** Wait until the job's numbers, not older than `seq`, are as wanted; return the seq they show. */
    static long follow(Connection nc, String subject, long seq, Predicate<JsonObject> isReached)
            throws InterruptedException {
        // Listen first, then read the last value: what changes in between is not missed.
        Subscription updates = nc.subscribe(subject);
        Message message = null;
        while (true) {
            if (message == null) {
                message = nc.request("$JS.API.DIRECT.GET.VIEW." + subject, null, PATIENCE);
            }
            // A status: nothing is published under this subject yet.
            if (message != null && !message.isStatusMessage()) {
                JsonObject shown = json(message);
                if (shown.get("seq").getAsLong() >= seq && isReached.test(shown)) {
                    updates.unsubscribe();
                    return shown.get("seq").getAsLong();
                }
            }
            message = updates.nextMessage(PATIENCE);
        }
    }

    static String rollout(JsonObject shown, String field) {
        return shown.getAsJsonObject("rollout").get(field).getAsString();
    }

    static boolean isRunning(JsonObject shown) {
        if (rollout(shown, "status").equals("failed")) {
            throw new IllegalStateException("failed: " + rollout(shown, "reason"));
        }
        return rollout(shown, "status").equals("running");
    }

    static boolean isOver(JsonObject shown) {
        return List.of("stopped", "complete").contains(rollout(shown, "status"));
    }

    /** Read records by one batched direct get, and check their checksums and their chain. */
    static List<Line> readLog(Connection nc, long first, long last) throws InterruptedException {
        String inbox = nc.createInbox();
        Subscription answers = nc.subscribe(inbox);
        String request = "{\"seq\": %d, \"batch\": %d}".formatted(first, last - first + 1);
        nc.publish("$JS.API.DIRECT.GET.LOG_1", inbox, request.getBytes(StandardCharsets.UTF_8));
        List<Line> records = new ArrayList<>();
        String head = null;
        while (true) {
            Message message = answers.nextMessage(PATIENCE);
            if (message.isStatusMessage()) {
                return records; // 204 ends the batch.
            }
            JsonObject record = json(message);
            byte[] data = message.getData();
            Blake2bDigest digest = new Blake2bDigest(128);
            digest.update(data, 0, data.length - 42);
            byte[] hash = new byte[16];
            digest.doFinal(hash, 0);
            String sum = record.get("sum").getAsString();
            if (!sum.equals(Hex.toHexString(hash)) || head != null && !head.equals(record.get("prev").getAsString())) {
                throw new IllegalStateException("the log is damaged: " + record);
            }
            head = sum;
            long seq = Long.parseLong(message.getHeaders().getFirst("Nats-Sequence"));
            records.add(new Line(seq, record.get("kind").getAsString(), sum));
        }
    }

    /** Connect; a client that starts before the bus waits for it. */
    static Connection connected(Options options) throws InterruptedException {
        for (long pause = 500;; pause = Math.min(2 * pause, 8_000)) {
            try {
                return Nats.connect(options);
            } catch (IOException error) {
                System.err.println("waiting for the bus: " + error.getMessage());
                Thread.sleep(pause);
            }
        }
    }

    public static void main(String[] args) throws Exception {
        String servers = System.getenv("CARAVAN_NATS_URL");
        String user = URI.create(servers.split(",")[0]).getUserInfo().split(":")[0];
        // A user may listen behind its own name only.
        Options options = Options.builder().server(servers).inboxPrefix("_INBOX." + user).build();
        try (Connection nc = connected(options)) {
            String subject = "view.job." + token(JOB_ID);
            long submitted = submit(nc, "submit", "\"Job\": " + JOB);
            long running = follow(nc, subject, submitted, Client::isRunning);
            long stopped = follow(nc, subject, submit(nc, "stop", "\"JobID\": \"" + JOB_ID + "\""), Client::isOver);
            System.out.printf(
                    "{\"submitted\": %d, \"running\": %d, \"stopped\": %d, \"records\": %s}%n",
                    submitted, running, stopped, GSON.toJson(readLog(nc, submitted, stopped)));
        }
    }
}
