-- Nothing used the settings but the readiness probe, which uses the boots now.
DROP TABLE settings;
