BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0003');
CREATE TABLE documents (
	run_id VARCHAR(80) NOT NULL, 
	document TEXT NOT NULL, 
	CONSTRAINT pk_documents PRIMARY KEY (run_id), 
	CONSTRAINT fk_documents_run_id FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE
);
INSERT INTO "documents" VALUES('20260401-101500-benchmark-0a1b2c3d','{"schema": "kvcanary.run", "version": 2, "id": "20260401-101500-benchmark-0a1b2c3d", "kind": "benchmark", "state": "done", "spec": {"settings": {"model": "qwen3-32b"}, "device": "cpu"}, "created_s": 100.0, "verdict": "pass", "sentence": "Pass: 14 checks; it''s sound."}');
INSERT INTO "documents" VALUES('20260401-101600-campaign-0a1b2c3e','{"schema": "kvcanary.run", "version": 2, "id": "20260401-101600-campaign-0a1b2c3e", "kind": "campaign", "state": "done", "spec": {"settings": {"model": "qwen3-32b"}, "device": "cpu"}, "created_s": 100.0, "verdict": "pass", "sentence": "Interrupted after 2 runs."}');
INSERT INTO "documents" VALUES('20260401-101700-plan-0a1b2c3f','{"schema": "kvcanary.run", "version": 2, "id": "20260401-101700-plan-0a1b2c3f", "kind": "plan", "state": "done", "spec": {"settings": {"model": "qwen3-32b"}, "device": "cpu"}, "created_s": 100.0, "verdict": "pass", "sentence": "Will not start."}');
CREATE TABLE folders (
	origin VARCHAR(40) NOT NULL, 
	host TEXT NOT NULL, 
	path TEXT NOT NULL, 
	scanned_ns BIGINT NOT NULL, 
	CONSTRAINT pk_folders PRIMARY KEY (origin)
);
INSERT INTO "folders" VALUES('aaaa','node-1','/data/a',17000000000);
INSERT INTO "folders" VALUES('bbbb','node-2','/data/b',0);
CREATE TABLE labels (
	run_id VARCHAR(80) NOT NULL, 
	label VARCHAR(60) NOT NULL, 
	CONSTRAINT pk_labels PRIMARY KEY (run_id, label), 
	CONSTRAINT fk_labels_run_id FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE
);
INSERT INTO "labels" VALUES('20260401-101500-benchmark-0a1b2c3d','baseline');
INSERT INTO "labels" VALUES('20260401-101500-benchmark-0a1b2c3d','night');
CREATE TABLE runs (
	id VARCHAR(80) NOT NULL, 
	kind VARCHAR(20) NOT NULL, 
	state VARCHAR(20) NOT NULL, 
	verdict VARCHAR(20) NOT NULL, 
	created_s DOUBLE NOT NULL, 
	started_s DOUBLE, 
	finished_s DOUBLE, 
	device VARCHAR(40) NOT NULL, 
	machine TEXT NOT NULL, 
	host TEXT NOT NULL, 
	model TEXT NOT NULL, 
	sentence TEXT NOT NULL, 
	note TEXT DEFAULT '' NOT NULL, 
	points INTEGER NOT NULL, 
	size_bytes BIGINT NOT NULL, 
	origin VARCHAR(40) NOT NULL, 
	files_url TEXT DEFAULT '' NOT NULL, 
	deleted_s DOUBLE, owner TEXT DEFAULT '' NOT NULL, owner_key TEXT DEFAULT '' NOT NULL, private INTEGER DEFAULT '0' NOT NULL, 
	CONSTRAINT pk_runs PRIMARY KEY (id)
);
INSERT INTO "runs" VALUES('20260401-101500-benchmark-0a1b2c3d','benchmark','done','pass',100.5,101.0,109.25,'cpu','Xeon','node-1','qwen3-32b','Pass: 14 checks; it''s sound.','after the driver update',6,4321,'aaaa','',NULL,'','',0);
INSERT INTO "runs" VALUES('20260401-101600-campaign-0a1b2c3e','campaign','interrupted','partial',160.5,161.0,169.25,'cuda:0','H200','node-2','','Interrupted after 2 runs.','',2,999,'bbbb','file:///shared/20260401-101600-campaign-0a1b2c3e',NULL,'','',0);
INSERT INTO "runs" VALUES('20260401-101700-plan-0a1b2c3f','plan','done','fail',220.0,220.0,220.0,'','','','llama-3','Will not start.','',0,77,'aaaa','',500.25,'ada@example.org (https://login.example.org#17)','https://login.example.org#17',1);
CREATE INDEX ix_labels_label ON labels (label);
CREATE INDEX ix_runs_kind_created_s_private_owner_key ON runs (kind, created_s, private, owner_key);
CREATE INDEX ix_runs_state_created_s_private_owner_key ON runs (state, created_s, private, owner_key);
CREATE INDEX ix_runs_verdict_created_s_private_owner_key ON runs (verdict, created_s, private, owner_key);
CREATE INDEX ix_runs_machine_created_s_private_owner_key ON runs (machine, created_s, private, owner_key);
CREATE INDEX ix_runs_model_created_s_private_owner_key ON runs (model, created_s, private, owner_key);
CREATE INDEX ix_runs_deleted_s_created_s_id_private_owner_key ON runs (deleted_s, created_s, id, private, owner_key);
COMMIT;
